package check

// Rule is something that must be true.
type Rule struct{ Name, Meaning string }

// The names of the rules. They are stable: reports, tests and the runbook in
// docs/operations.md go by them.
const (
	accounting              = "accounting"
	orderWithoutEvent       = "order-without-event"
	eventWithoutOrder       = "event-without-order"
	reservationWithoutOrder = "reservation-without-order"
	lineTwice               = "line-twice"
	stock                   = "stock"
	claimExpired            = "claim-expired"
	sequenceGap             = "sequence-gap"
	statusDisagrees         = "status-disagrees"
	eventLost               = "event-lost"
	eventUnknown            = "event-unknown"
	inboxTwice              = "inbox-twice"
	inboxWithoutWork        = "inbox-without-work"
	workWithoutInbox        = "work-without-inbox"
	answerLost              = "answer-lost"
	answers                 = "answers"
	suspectLeft             = "suspect-left"
	tooManyCopies           = "too-many-copies"
	tooFewCopies            = "too-few-copies"
	tooManyDeliveries       = "too-many-deliveries"
	attemptCharged          = "attempt-charged"
	notQuiet                = "not-quiet"
	exception               = "exception"
	stuck                   = "stuck"
)

// Rules returns all rules, in the order in which reports name them.
func Rules() []Rule {
	return []Rule{
		{accounting, "every accepted order is reserved, rejected, released, cancelled first, dead, Failed or in flight"},
		{eventLost, "what was published is in the inbox of the other service, in a queue, or dead-lettered"},
		{answerLost, "so are inventory's answers"},
		{stuck, "what is on its way moves"},
		{orderWithoutEvent, "every order has its order.created, every cancelled one its order.cancelled"},
		{eventWithoutOrder, "every event in the outbox of orders belongs to an order"},
		{sequenceGap, "the events of an order count 1, 2, 3, … and as far as the order says"},
		{reservationWithoutOrder, "inventory knows only orders that exist"},
		{lineTwice, "an order holds what it ordered, each sku once, or nothing"},
		{stock, "what is reserved of a sku is what orders hold, and no more than there is"},
		{statusDisagrees, "the status of an order is what inventory has said"},
		{answers, "inventory answers an order once, and the answer is applied once"},
		{eventUnknown, "what an inbox has, or the broker was given, was sent by the other service's outbox"},
		{inboxTwice, "an event is in an inbox once, under one consumer's name"},
		{inboxWithoutWork, "what an inbox has was carried out"},
		{workWithoutInbox, "what was carried out is in the inbox"},
		{claimExpired, "no row is Processing past its lease"},
		{suspectLeft, "no delivery stays marked as a suspect"},
		{tooFewCopies, "what is Published was sent to the broker"},
		{tooManyCopies, "without faults: an event is sent once"},
		{tooManyDeliveries, "without faults: a message is delivered four times at most"},
		{attemptCharged, "without faults: no attempt is charged"},
		{notQuiet, "when all work is done, nothing is in flight"},
		{exception, "what cannot get through is Failed or dead-lettered, and nothing else is"},
	}
}
