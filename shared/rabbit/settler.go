package rabbit

import (
	"slices"
	"sync"
)

// acknowledger is the part of a channel that settles deliveries.
type acknowledger interface {
	Ack(tag uint64, multiple bool) error
	Nack(tag uint64, multiple, requeue bool) error
}

// settler answers for the deliveries of one session, each once. It knows which
// tags are settled, so that one ack may speak for many only where nothing below
// it is still open.
type settler struct {
	mu      sync.Mutex
	channel acknowledger
	low     uint64              // every tag up to here is settled
	above   map[uint64]struct{} // settled tags above low
}

func newSettler(ch acknowledger) *settler {
	return &settler{channel: ch, above: make(map[uint64]struct{})}
}

// ack acknowledges tags, with as few frames as that takes.
func (s *settler) ack(tags ...uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.Sort(tags)
	for _, t := range tags {
		s.above[t] = struct{}{}
	}
	before := s.low
	s.advance()
	covered := 0
	for covered < len(tags) && tags[covered] <= s.low {
		covered++
	}
	if covered > 0 {
		// All up to the last of these is settled, by earlier answers or by this one.
		top := tags[covered-1]
		if err := s.channel.Ack(top, top > before+1); err != nil {
			return err
		}
	}
	for _, t := range tags[covered:] {
		if err := s.channel.Ack(t, false); err != nil {
			return err
		}
	}
	return nil
}

// retry sends a delivery to where its queue dead-letters to.
func (s *settler) retry(tag uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.channel.Nack(tag, false, false); err != nil {
		return err
	}
	s.above[tag] = struct{}{}
	s.advance()
	return nil
}

func (s *settler) advance() {
	for {
		if _, ok := s.above[s.low+1]; !ok {
			return
		}
		delete(s.above, s.low+1)
		s.low++
	}
}
