package inbox

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	serialization = "40001"
	deadlock      = "40P01"
)

// outageClasses are the SQLSTATE classes of a database that cannot work at the
// moment: connection exception, invalid authorization, insufficient resources,
// system error. https://www.postgresql.org/docs/current/errcodes-appendix.html
var outageClasses = []string{"08", "28", "53", "58"}

// outageCodes are single states of the same kind, whoever's message meets them.
var outageCodes = []string{
	"25006", // read-only transaction: a standby, or being switched over
	"25P03", // idle in transaction for too long: we were stopped
	"25P04", // transaction timeout
	"26000", // no such prepared statement: a pooler has handed us another session,
	"42P05", // or one that has a statement of this name
	"3D000", // the database is not there: being restored
	"42501", // insufficient privilege: a role was revoked
	"42P01", // undefined table: a migration is missing
	"42703", // undefined column
	"55P03", // lock not available: somebody holds a row for long
	"57014", // canceled by a statement timeout
	"57P01", // shut down by an administrator
	"57P02", // crashed
	"57P03", // cannot connect now
	"57P04", // the database was dropped
	"57P05", // idle session timeout
}

// planChanged reports whether a table of a prepared statement has changed; pgx
// prepares it anew. The code, feature not supported, may also be the fault of a
// message, with a unit that date_trunc does not support, say. So the routine that
// complains is looked at too; its name is in no language.
func planChanged(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "0A000" && pg.Routine == "RevalidateCachedQuery"
}

// busy is an outage that may be one of a single row: others get through.
func busy(err error) bool {
	code := sqlState(err)
	return code == "55P03" || code == "57014"
}

// busyTries is how many messages in a row may each wait for a locked row before
// the rest of their batch is put off.
const busyTries = 3

// outage marks an error that a closer look has shown to be one.
type outage struct{ error }

func (o *outage) Unwrap() error { return o.error }

// Outage reports whether err is the fault of the surroundings and not of a
// message: the database is away, full, read-only, too slow, lacks a table or a
// right, or the outcome of a commit is not known. The message is to be handled
// again, as often as it takes, and no attempt is spent on it.
//
// Everything else counts as the message's own fault: bad data (SQLSTATE class
// 22), a broken constraint (23), an error of the handler.
func Outage(err error) bool {
	if err == nil {
		return false
	}
	var marked *outage
	if errors.As(err, &marked) {
		return true
	}
	if errors.As(err, new(*pgconn.ConnectError)) {
		return true // whatever the server said to it: the work has not begun
	}
	if code := sqlState(err); code != "" {
		return slices.Contains(outageClasses, code[:2]) || slices.Contains(outageCodes, code) || planChanged(err)
	}
	var network net.Error
	return errors.As(err, &network) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) ||
		errors.Is(err, pgx.ErrTxClosed) || errors.Is(err, pgconn.ErrConnClosed) || pgconn.SafeToRetry(err)
}
