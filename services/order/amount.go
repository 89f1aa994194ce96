package order

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/apd/v3"

	"example.com/baton/shared/events"
)

// maxAmount is the largest amount of an order, in whole units of its currency.
const maxAmount = 1_000_000_000_000

// exact is the arithmetic of amounts: more digits than maxAmount with the most
// decimals needs, and an error rather than a rounded result.
var exact = apd.Context{
	Precision: 34, MaxExponent: apd.MaxExponent, MinExponent: apd.MinExponent,
	Rounding: apd.RoundHalfEven, Traps: apd.DefaultTraps | apd.Inexact,
}

// normal returns literal, a JSON number, with the number of decimals that the
// currency has: 199 and 199.0 are 199.00 in CNY. What it cannot say exactly,
// such as 199.001 CNY, is an error, and so is an amount that is not above zero
// or above maxAmount. The error's text is for the client.
func normal(literal events.Amount, decimals int32) (events.Amount, error) {
	// A literal may be as long as a body, and 1e99999 and 1e-99999 make as many
	// digits: all are refused before any arithmetic.
	if len(literal) > 40 {
		return "", errors.New("must not be longer than 40 characters")
	}
	d, _, err := apd.NewFromString(string(literal))
	if err != nil {
		return "", errors.New("must be a number")
	}
	switch whole := d.NumDigits() + int64(d.Exponent); { // digits before the point
	case d.Sign() <= 0:
		return "", errors.New("must be above zero")
	case whole < -40:
		return "", tooFine(decimals)
	case whole > 13 || d.Cmp(apd.New(maxAmount, 0)) > 0:
		return "", fmt.Errorf("must not be above %d", int64(maxAmount))
	}
	if _, err := exact.Quantize(d, d, -decimals); err != nil {
		return "", tooFine(decimals)
	}
	return events.Amount(d.Text('f')), nil
}

func tooFine(decimals int32) error {
	return fmt.Errorf("must not have more than %d decimals in this currency", decimals)
}
