package zoo

import (
	"cmp"
	"fmt"
	"net"
	"strconv"

	amqp "github.com/rabbitmq/amqp091-go"

	"example.com/baton/internal/faults"
	"example.com/baton/internal/proxy"
	"example.com/baton/internal/system"
	"example.com/baton/internal/testenv"
	orderservice "example.com/baton/services/order"
	"example.com/baton/shared/events"
)

// scenario is what happens to a leg, whoever does it.
type scenario struct {
	play func(w *world)
	// noFaults: nothing is disturbed, and what is sent and delivered is counted.
	noFaults bool
}

var scenarios = map[string]scenario{
	"publish-before-commit":    {play: diesWhilePlacing("die at published after 2")},
	"publish-after-commit":     {play: diesWhilePlacing("die at committed after 2")},
	"returns-ignored":          {play: bindingIsMissing},
	"nack-as-success":          {play: queueIsFull},
	"unknown-as-success":       {play: networkSwallows},
	"lock-without-transaction": {play: twoRelays, noFaults: true},
	"fixed-locked-by":          {play: relayDies},
	"claim-without-expiry":     {play: relayDies},
	"ack-before-commit":        {play: consumerDies("die at reserved")},
	"inbox-before-work":        {play: consumerDies("die at recorded")},
	"look-then-insert":         {play: copiesMeet},
	"inbox-row-kept":           {play: handlerFails},
	"exhausted-nacked":         {play: handlerFailsForEver, noFaults: true},
	"forward-without-confirm":  {play: finalQueueIsUnbound},
	"requeue-loop":             {play: handlerFailsForEver, noFaults: true},
}

// diesWhilePlacing: the process that takes orders dies in the middle of one.
func diesWhilePlacing(fault string) func(*world) {
	return func(w *world) {
		if w.wrong {
			w.start(fault).waitDead()
			return
		}
		w.order.Arm(faults.Fault{Step: orderservice.StepCommitted, Action: faults.Crash, After: 2})
		load := w.sys.Placing(5)
		w.order.WaitCrash(orderservice.StepCommitted)
		w.order.Restart()
		load.Wait()
	}
}

const handed = "status = 'Published' or (status = 'Pending' and attempt_count > 0)"

// bindingIsMissing: nobody has subscribed to what is sent, for a while.
func bindingIsMissing(w *world) {
	w.unbind(events.OrderExchange, system.InventoryQueue, events.OrderCreated)
	w.storeOrders(5)
	relay := w.start("")
	w.untilRows(handed, 5)
	if w.wrong {
		relay.end()
	} else if n := w.rows("attempt_count > 0"); n != 5 {
		w.t.Errorf("%d of 5 came back", n)
	}
	w.bind(events.OrderExchange, system.InventoryQueue, events.OrderCreated)
}

// queueIsFull: the queue rejects what is sent, for a while. A quorum queue tells
// a channel so only after it has taken something from it, so there are two rounds.
func queueIsFull(w *world) {
	w.inventory.Stop()
	w.limit(system.InventoryQueue, 1)
	w.storeOrders(5)
	relay := w.start("")
	w.untilRows(handed, 5)
	w.storeOrders(5)
	w.untilRows(handed, 10)
	if w.wrong {
		relay.end()
	} else if w.rows("attempt_count > 0") == 0 {
		w.t.Error("nothing was refused")
	}
	// It goes on taking messages once it is shorter. A limit that is removed before
	// that is not told to channels that know of it (RabbitMQ 3.10).
	w.inventory.Restart()
	w.untilRows("status = 'Published'", 10)
	w.limit(system.InventoryQueue, 0)
}

// networkSwallows: what the relay writes to its socket never arrives, and then
// the connection ends.
func networkSwallows(w *world) {
	uri, err := amqp.ParseURI(w.sys.Vhost)
	if err != nil {
		w.t.Fatal(err)
	}
	network, err := proxy.New(net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port)))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { network.Close() })
	w.proxy = network
	relay := w.start("")
	network.Freeze(proxy.ToServer)
	w.storeOrders(1)
	if w.wrong {
		w.untilRows("status = 'Published'", 1)
	} else {
		w.untilRows("status = 'Processing'", 1)
	}
	network.Cut()
	if w.wrong {
		relay.end()
	}
	network.Thaw(proxy.ToServer)
	w.untilRows("status = 'Published'", 1)
}

// twoRelays: two of them find the same rows at the same time.
func twoRelays(w *world) {
	ids := w.storeOrders(5)
	relays := []actor{w.start("wait at selected"), w.start("wait at selected")}
	for _, r := range relays {
		r.waitAt()
	}
	for _, r := range relays {
		r.goOn()
	}
	w.untilRows("status = 'Published'", 5)
	if w.wrong {
		w.until("both have sent all", func() error {
			copies, _ := w.counted()
			for _, id := range ids {
				if copies[id] < 2 {
					return fmt.Errorf("%s was sent %d times", id, copies[id])
				}
			}
			return nil
		})
	}
}

// relayDies: one relay dies with rows in hand, and another one goes on.
func relayDies(w *world) {
	w.storeOrders(20)
	w.start("die at claimed").waitDead()
	w.start("")
	if w.mistake.Name == "claim-without-expiry" && w.wrong {
		w.untilRows("status = 'Published'", 10)
		return
	}
	w.untilRows("status = 'Published'", 20)
}

// consumerDies: it does so in the middle of a message.
func consumerDies(fault string) func(*world) {
	return func(w *world) {
		w.inventory.Stop()
		consumer := w.start(fault)
		w.sys.Place(3)
		consumer.waitDead()
		w.inventory.Restart()
	}
}

// copiesMeet: two consumers each have a copy of one message in hand.
func copiesMeet(w *world) {
	w.inventory.Stop()
	consumers := []actor{w.start("wait at looked"), w.start("wait at looked")}
	o := w.sys.Place(1)[0]
	w.until("the event is sent", func() error { return testenv.Want(w.rows("status = 'Published'"), 1) })
	w.sendAgain(o.EventID)
	for _, c := range consumers {
		c.waitAt()
	}
	for _, c := range consumers {
		c.goOn()
	}
	if w.wrong {
		for _, c := range consumers {
			c.end()
		}
		w.inventory.Restart()
	}
}

// handlerFails: a message fails when it comes first.
func handlerFails(w *world) {
	w.inventory.Stop()
	consumer := w.start("stumble at reserved")
	w.sys.Place(1)
	w.until("it is in the inbox", func() error {
		var n int
		err := w.sys.InventoryDB.QueryRow(w.t.Context(), `select count(*) from inbox_messages`).Scan(&n)
		return cmp.Or(err, testenv.Want(n, 1))
	})
	consumer.end()
	w.inventory.Restart()
}

// handlerFailsForEver: a message fails whenever it comes.
func handlerFailsForEver(w *world) {
	w.inventory.Stop()
	consumer := w.start("fail at reserved")
	o := w.sys.Place(1)[0]
	w.until("it is given up, or goes on for too long", func() error {
		if _, deliveries := w.counted(); deliveries[o.EventID] > 4 {
			return nil
		}
		return testenv.Want(w.inQueues(system.InventoryQueue+".dlq"), 1)
	})
	consumer.end()
	w.inventory.Restart()
}

// finalQueueIsUnbound: a message fails whenever it comes, and has nowhere to end.
func finalQueueIsUnbound(w *world) {
	w.inventory.Stop()
	consumer := w.start("fail at reserved")
	w.unbind("inventory.dlx", system.InventoryQueue+".dlq", system.InventoryQueue)
	w.sys.Place(1)
	if w.wrong {
		consumer.wait("message dead-lettered")
	} else {
		w.until("it is in the final queue", func() error { return testenv.Want(w.inQueues(system.InventoryQueue+".dlq"), 1) })
	}
	consumer.end()
	w.inventory.Restart()
}
