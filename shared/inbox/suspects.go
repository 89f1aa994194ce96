package inbox

import (
	"context"
	"fmt"
)

// Suspects remembers, across crashes, how often a message was handled alone
// without its consumer living to tell. The broker's own count of deliveries
// cannot: it counts every lost connection against all messages that were held.
type Suspects struct {
	DB       DB
	Consumer string // the name of the consumer, as for Handle
}

const markSQL = `
insert into inbox_suspects (consumer_name, event_id, lone_count) values ($1, $2, 1)
on conflict (consumer_name, event_id)
do update set lone_count = inbox_suspects.lone_count + 1, marked_at = now()
returning lone_count`

// Mark records that the message id is about to be handled alone, and returns how
// many times that is now without a Clear.
func (s Suspects) Mark(ctx context.Context, id string) (int, error) {
	var n int
	if err := s.DB.QueryRow(ctx, markSQL, s.Consumer, id).Scan(&n); err != nil {
		return 0, fmt.Errorf("mark suspect %s: %w", id, err)
	}
	return n, nil
}

const clearSQL = `delete from inbox_suspects where consumer_name = $1 and event_id = $2`

// Clear records that the consumer has lived through the message id, whatever
// became of it.
func (s Suspects) Clear(ctx context.Context, id string) error {
	if _, err := s.DB.Exec(ctx, clearSQL, s.Consumer, id); err != nil {
		return fmt.Errorf("clear suspect %s: %w", id, err)
	}
	return nil
}
