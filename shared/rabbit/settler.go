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
// are open, so that one ack may speak for many only below the lowest of them.
type settler struct {
	mu      sync.Mutex
	channel acknowledger
	open    map[uint64]struct{} // tags without an answer; the prefetch bounds them
}

func newSettler(ch acknowledger) *settler {
	return &settler{channel: ch, open: make(map[uint64]struct{})}
}

// take notes a delivery that will want an answer. Tags come in rising order.
func (s *settler) take(tag uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[tag] = struct{}{}
}

// ack acknowledges tags, with as few frames as that takes.
func (s *settler) ack(tags ...uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.Sort(tags)
	for _, t := range tags {
		delete(s.open, t)
	}
	lowest := s.lowest()
	below := 0
	for below < len(tags) && tags[below] < lowest {
		below++
	}
	if below > 0 {
		if err := s.channel.Ack(tags[below-1], below > 1); err != nil {
			return err
		}
	}
	for _, t := range tags[below:] {
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
	delete(s.open, tag)
	return s.channel.Nack(tag, false, false)
}

// lowest is the lowest open tag, or one above all that can be.
func (s *settler) lowest() uint64 {
	lowest := ^uint64(0)
	for t := range s.open {
		lowest = min(lowest, t)
	}
	return lowest
}
