//go:build wrongclock

package faults

import "time"

var shiftClock = time.ShiftWallClock // see internal/wrongclock
