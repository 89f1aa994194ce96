//go:build !wrongclock

package faults

import "time"

// shiftClock makes the wall clock of this process wrong. It is nil in a program
// whose clock cannot be.
var shiftClock func(d time.Duration)
