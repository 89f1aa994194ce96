package rabbit

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// wire is a broker in memory whose every answer about a message is the test's,
// for orders of events that no real broker can be made to keep. The client
// library at the other end is the real one.
//
// It speaks as much of AMQP 0-9-1 as Publisher and Consumer use, and says yes to
// whatever they declare. It has no queues, no exchanges and no flow control, and
// its one limit is that a connection has one channel. It always reads: a broker
// that has stopped reading is what the proxy of the other tests is for.
type wire struct {
	// What the clients do, each called on the reading side of its link, one at a
	// time for a link.
	onPublish func(*link, published)
	onConsume func(*link)
	onSettle  func(*link, settlement)
	onGone    func(*link) // the connection has ended, whoever ended it

	mu     sync.Mutex
	refuse bool // no more connections
	links  sync.WaitGroup
}

// published is a message that a client has sent.
type published struct {
	tag           uint64 // of its confirm
	exchange, key string
	id            string // message_id
	header        []byte // payload of its header frame, as the client encoded it
	body          []byte
}

// settlement is what a consumer says about deliveries.
type settlement struct {
	tag                     uint64
	multiple, nack, requeue bool
}

var errRefused = errors.New("connection refused")

// connect is a [connector].
func (w *wire) connect(context.Context, string, string) (net.Conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refuse {
		return nil, errRefused
	}
	client, server := net.Pipe()
	l := &link{wire: w, conn: server, out: make(chan []byte, 1024), done: make(chan struct{})}
	w.links.Go(l.read)
	w.links.Go(l.write)
	return client, nil
}

func (w *wire) refuseConnections() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refuse = true
}

// link is the broker's end of one connection.
type link struct {
	*wire
	conn net.Conn
	out  chan []byte // frames; nil hangs up
	done chan struct{}

	consumer string // tag of the one consumer
	tags     uint64 // of publishes in confirm mode
	now      *published
}

const (
	methodFrame, headerFrame, bodyFrame, heartbeatFrame = 1, 2, 3, 8
	frameEnd                                            = 0xce
)

// write sends what was queued, in order, and heartbeats in between.
func (l *link) write() {
	defer l.conn.Close()
	beat := time.NewTicker(heartbeat / 2)
	defer beat.Stop()
	for {
		var frames []byte
		select {
		case frames = <-l.out:
			if frames == nil {
				return
			}
		case <-beat.C:
			frames = frame(heartbeatFrame, 0, nil)
		case <-l.done:
			return
		}
		if _, err := l.conn.Write(frames); err != nil {
			return
		}
	}
}

// hangUp closes the socket once everything that was queued is sent.
func (l *link) hangUp() { l.send(nil) }

func (l *link) send(frames []byte) {
	select {
	case l.out <- frames:
	case <-l.done:
	}
}

// read answers the client until the connection ends.
func (l *link) read() {
	defer func() {
		close(l.done)
		l.conn.Close()
		if l.onGone != nil {
			l.onGone(l)
		}
	}()
	r := bufio.NewReader(l.conn)
	if _, err := io.ReadFull(r, make([]byte, 8)); err != nil { // "AMQP" and the version
		return
	}
	l.send(method(0, 10, 10, packed{}.octets(0, 9).table(nil).longString("PLAIN").longString("en_US")))
	for {
		var head [7]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return
		}
		payload := make([]byte, binary.BigEndian.Uint32(head[3:])+1)
		if _, err := io.ReadFull(r, payload); err != nil {
			return
		}
		l.take(head[0], payload[:len(payload)-1])
	}
}

func (l *link) take(kind byte, payload []byte) {
	switch kind {
	case methodFrame:
		in := &unpacked{payload}
		l.method(in.short(), in.short(), in)
	case headerFrame:
		l.now.header = payload
		in := &unpacked{payload[4:]}
		l.now.body = make([]byte, 0, in.longLong())
		l.now.id = messageID(in)
	case bodyFrame:
		l.now.body = append(l.now.body, payload...)
	}
	if l.now != nil && l.now.header != nil && len(l.now.body) == cap(l.now.body) {
		p := *l.now
		l.now = nil
		if l.onPublish != nil {
			l.onPublish(l, p)
		}
	}
}

// method answers the calls of the client. The numbers are those of the protocol.
func (l *link) method(class, id uint16, in *unpacked) {
	yes := func(args packed) { l.send(method(1, class, id+1, args)) }
	switch [2]uint16{class, id} {
	case [2]uint16{10, 11}: // connection.start-ok
		l.send(method(0, 10, 30, packed{}.short(10).long(128<<10).short(uint16(heartbeat/time.Second)))) // tune
	case [2]uint16{10, 40}: // connection.open
		l.send(method(0, 10, 41, packed{}.shortString("")))
	case [2]uint16{10, 50}: // connection.close
		l.send(method(0, 10, 51, nil))
		l.hangUp()
	case [2]uint16{10, 51}: // connection.close-ok
		l.hangUp()
	case [2]uint16{20, 10}: // channel.open
		yes(packed{}.longString(""))
	case [2]uint16{20, 40}, [2]uint16{40, 10}, [2]uint16{50, 20}, [2]uint16{60, 10}, [2]uint16{85, 10}:
		yes(nil) // channel.close, exchange.declare, queue.bind, basic.qos, confirm.select
	case [2]uint16{50, 10}: // queue.declare
		in.short()
		yes(packed{}.shortString(in.shortString()).long(0).long(0))
	case [2]uint16{60, 20}: // basic.consume
		in.short()
		in.shortString()
		l.consumer = in.shortString()
		yes(packed{}.shortString(l.consumer))
		if l.onConsume != nil {
			l.onConsume(l)
		}
	case [2]uint16{60, 40}: // basic.publish
		l.tags++
		in.short()
		l.now = &published{tag: l.tags, exchange: in.shortString(), key: in.shortString()}
	case [2]uint16{60, 80}, [2]uint16{60, 120}: // basic.ack, basic.nack
		s := settlement{tag: in.longLong(), nack: id == 120}
		bits := in.octet()
		s.multiple, s.requeue = bits&1 != 0, s.nack && bits&2 != 0
		l.onSettle(l, s)
	}
}

// What the broker may say, whenever the test wants.

func (l *link) ack(tag uint64, multiple bool) {
	l.send(method(1, 60, 80, packed{}.longLong(tag).bit(multiple)))
}

func (l *link) nack(tag uint64, multiple bool) {
	l.send(method(1, 60, 120, packed{}.longLong(tag).bit(multiple)))
}

func (l *link) giveBack(p published) { // basic.return
	args := packed{}.short(amqp.NoRoute).shortString("NO_ROUTE").shortString(p.exchange).shortString(p.key)
	l.send(append(method(1, 60, 50, args), content(p.header, p.body)...))
}

func (l *link) deliver(tag uint64, redelivered bool, exchange, key string, header, body []byte) {
	args := packed{}.shortString(l.consumer).longLong(tag).bit(redelivered).shortString(exchange).shortString(key)
	l.send(append(method(1, 60, 60, args), content(header, body)...))
}

func (l *link) cancelConsumer() {
	l.send(method(1, 60, 30, packed{}.shortString(l.consumer).bit(true)))
}

func (l *link) closeChannel(code uint16, text string) {
	l.send(method(1, 20, 40, packed{}.short(code).shortString(text).short(60).short(40)))
}

func (l *link) closeConnection(code uint16, text string) {
	l.send(method(0, 10, 50, packed{}.short(code).shortString(text).short(0).short(0)))
}

func frame(kind byte, channel uint16, payload []byte) []byte {
	b := packed{kind}.short(channel).long(uint32(len(payload)))
	return append(append(b, payload...), frameEnd)
}

func method(channel, class, id uint16, args packed) []byte {
	return frame(methodFrame, channel, append(packed{}.short(class).short(id), args...))
}

func content(header, body []byte) []byte {
	b := frame(headerFrame, 1, header)
	if len(body) > 0 {
		b = append(b, frame(bodyFrame, 1, body)...)
	}
	return b
}

// properties is the payload of a header frame with a message_id, a type and
// headers.
func properties(id, kind string, headers []byte, bodySize int) []byte {
	b := packed{}.short(60).short(0).longLong(uint64(bodySize))
	const hasHeaders, hasID, hasType = 1 << 13, 1 << 7, 1 << 5
	return append(append(b.short(hasHeaders|hasID|hasType), headers...), packed{}.shortString(id).shortString(kind)...)
}

// messageID reads on to the message_id in a list of properties.
func messageID(in *unpacked) string {
	flags := in.short()
	for bit := uint16(1) << 15; bit > 1<<7; bit >>= 1 {
		switch {
		case flags&bit == 0:
		case bit == 1<<13:
			in.skip(int(in.long()))
		case bit == 1<<12, bit == 1<<11: // delivery_mode, priority
			in.octet()
		default:
			in.shortString()
		}
	}
	if flags&(1<<7) == 0 {
		return ""
	}
	return in.shortString()
}

// packed are arguments as the protocol writes them.
type packed []byte

func (b packed) octets(v ...byte) packed  { return append(b, v...) }
func (b packed) short(v uint16) packed    { return binary.BigEndian.AppendUint16(b, v) }
func (b packed) long(v uint32) packed     { return binary.BigEndian.AppendUint32(b, v) }
func (b packed) longLong(v uint64) packed { return binary.BigEndian.AppendUint64(b, v) }

func (b packed) shortString(s string) packed {
	return append(append(b, byte(len(s))), s...)
}

func (b packed) longString(s string) packed {
	return append(b.long(uint32(len(s))), s...)
}

func (b packed) bit(v bool) packed {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

// table writes strings, int64s, arrays and tables, which is what x-death is made
// of.
func (b packed) table(t amqp.Table) packed {
	var fields packed
	for k, v := range t {
		fields = fields.shortString(k).field(v)
	}
	return b.longString(string(fields))
}

func (b packed) field(v any) packed {
	switch v := v.(type) {
	case string:
		return b.octets('S').longString(v)
	case int64:
		return b.octets('l').longLong(uint64(v))
	case amqp.Table:
		return b.octets('F').table(v)
	case []any:
		var items packed
		for _, item := range v {
			items = items.field(item)
		}
		return b.octets('A').longString(string(items))
	}
	panic("a type that x-death is not made of")
}

// unpacked reads arguments. What the client library writes is well formed.
type unpacked struct{ b []byte }

func (u *unpacked) skip(n int) []byte {
	v := u.b[:n]
	u.b = u.b[n:]
	return v
}

func (u *unpacked) octet() byte         { return u.skip(1)[0] }
func (u *unpacked) short() uint16       { return binary.BigEndian.Uint16(u.skip(2)) }
func (u *unpacked) long() uint32        { return binary.BigEndian.Uint32(u.skip(4)) }
func (u *unpacked) longLong() uint64    { return binary.BigEndian.Uint64(u.skip(8)) }
func (u *unpacked) shortString() string { return string(u.skip(int(u.octet()))) }
