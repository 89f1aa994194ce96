// Command clock sets its own clock wrong and says what it sees.
package main

import (
	"fmt"
	"time"
)

func main() {
	start := time.Now()
	fmt.Println(start.Unix())
	for _, shift := range []time.Duration{10 * time.Minute, -48*time.Hour - time.Nanosecond, 0} {
		fired := time.After(time.Millisecond)
		time.ShiftWallClock(shift)
		<-fired
		now := time.Now()
		fmt.Println(now.Unix(), now.Sub(start) < time.Minute && time.Since(start) >= 0)
	}
}
