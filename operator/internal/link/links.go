// Package link is the operator's side of PlatformLink (proto/phalanx/v1/platform.proto): one stream to the master of
// each job. Both sides tell all that holds whenever it changes, so that nothing is lost with a stream.
package link

import (
	"cmp"
	"context"
	"crypto/rand"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"phalanx/operator/internal/link/platformpb"
)

// Master is where the master of a job is found, and what it believes.
type Master struct {
	Address string // host:port
	Token   string
}

// Turn is which of the operators that go by one lease this one is.
type Turn struct {
	Lease string // its uid; empty: there is none
	Epoch uint64 // grows from one to the next
}

// Self is what the operator says of itself.
type Self struct {
	Version string
	Turn    func(ctx context.Context) (Turn, error) // it is asked before each dial; nil: there is no lease
	// instance is random, new with each process: whose numbers facts have.
	instance string
}

// Links keeps a stream to the master of each job that it has been told of, and dials again where one ends. Safe for use
// by several goroutines.
type Links struct {
	context context.Context
	self    Self
	changed func(job types.NamespacedName) // a job's view has changed
	dial    func(ctx context.Context, address string) (net.Conn, error)

	// deriving is held while keys are made of a token: for a thousand jobs at a time that would be 16 GiB.
	deriving sync.Mutex

	mu   sync.Mutex
	jobs map[types.UID]*entry
}

// entry is one job's.
type entry struct {
	name   types.NamespacedName
	master Master
	cancel context.CancelFunc
	// transport is made of the token when somebody is there; of keep's goroutine alone.
	transport credentials.TransportCredentials

	wish     *platformpb.PlatformView   // what is to hold; nil: nothing was told
	wishedAt time.Time                  // from when its times count
	wished   chan struct{}              // holds one token: wish or facts are new
	facts    []*platformpb.PlatformFact // of which no master has said that it has them, in their order
	lastFact uint64                     // its number
	sentFact uint64                     // the last that the stream has sent
	view     *platformpb.JobView        // nil: the master is not there
	current  uint64                     // generation of wish
	stepped  time.Time                  // when changed was called last
	happened time.Time                  // anything to the job, or its master's last word
	stirred  chan struct{}              // holds one token: happened is later
	dropped  bool                       // it was said that a wish was too long
}

const (
	// mostFacts wait for a master that is not there; older ones are dropped.
	mostFacts = 64
	// sameTime is how far two looks at one moment may differ.
	sameTime = time.Second
	// stepsEvery is how often a step alone is news: each is a write of the job's status.
	stepsEvery = 30 * time.Second
)

// New makes an empty set of links. They end with ctx. changed is called from other goroutines, and must not wait.
func New(ctx context.Context, self Self, changed func(job types.NamespacedName)) *Links {
	self.instance = rand.Text()
	return &Links{context: ctx, self: self, changed: changed, dial: dialTCP, jobs: map[types.UID]*entry{}}
}

// Knows says whether the job's master is dialled already.
func (l *Links) Knows(job types.UID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.jobs[job] != nil
}

// Token is that by which the job's programs know each other; empty: its master is not dialled.
func (l *Links) Token(job types.UID) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if entry := l.jobs[job]; entry != nil {
		return entry.master.Token
	}
	return ""
}

// Open begins to dial a job's master.
func (l *Links) Open(job types.UID, name types.NamespacedName, master Master) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.jobs[job] != nil || l.context.Err() != nil {
		return
	}
	ctx, cancel := context.WithCancel(l.context)
	entry := &entry{
		name: name, master: master, cancel: cancel, happened: time.Now(),
		wished: make(chan struct{}, 1), stirred: make(chan struct{}, 1),
	}
	l.jobs[job] = entry
	go l.keep(ctx, entry)
}

// Close ends the stream of a job that is over or gone.
func (l *Links) Close(job types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if entry := l.jobs[job]; entry != nil {
		entry.cancel()
		delete(l.jobs, job)
	}
}

// Tell says what is to hold of a job from now on. Its generation is set here, and it is cut to what a message can have;
// the same again says nothing. Whoever tells has looked at the job because something has happened to it: a master that
// is not there may be there now.
func (l *Links) Tell(job types.UID, wish *platformpb.PlatformView) {
	legible(wish.ProtoReflect())
	left := fit(wish)
	l.mu.Lock()
	defer l.mu.Unlock()
	entry := l.jobs[job]
	if entry == nil {
		return
	}
	entry.happened = time.Now()
	ring(entry.stirred)
	if left != "" && !entry.dropped {
		entry.dropped = true
		log.FromContext(l.context).WithName("link").Info("one message has no room for all that a master is to know",
			"job", entry.name.String(), "left out", left)
	}
	now := time.Now()
	wish.Generation = entry.current
	if entry.wish != nil && sameWish(asOf(now, entry.wish, entry.wishedAt), wish) {
		return
	}
	entry.current++
	wish.Generation = entry.current
	entry.wish, entry.wishedAt = wish, now
	ring(entry.wished)
}

// asOf is what a wish of then says now: nodes that go have less time left.
func asOf(now time.Time, wish *platformpb.PlatformView, then time.Time) *platformpb.PlatformView {
	copied := proto.CloneOf(wish)
	for _, departure := range copied.GetDepartures() {
		departure.LeftMs = max(0, departure.GetLeftMs()-now.Sub(then).Milliseconds())
	}
	return copied
}

// sameWish: both say the same of the same time.
func sameWish(a, b *platformpb.PlatformView) bool {
	timeless := func(wish *platformpb.PlatformView) *platformpb.PlatformView {
		copied := proto.CloneOf(wish)
		for _, departure := range copied.GetDepartures() {
			departure.LeftMs = 0
		}
		return copied
	}
	if !proto.Equal(timeless(a), timeless(b)) {
		return false
	}
	for i, departure := range a.GetDepartures() {
		apart := departure.GetLeftMs() - b.GetDepartures()[i].GetLeftMs()
		if max(apart, -apart) > sameTime.Milliseconds() {
			return false
		}
	}
	return true
}

// Report gives a fact to the master's record. It is lost where no master comes.
func (l *Links) Report(job types.UID, fact *platformpb.PlatformFact) {
	legible(fact.ProtoReflect())
	l.mu.Lock()
	defer l.mu.Unlock()
	entry := l.jobs[job]
	if entry == nil {
		return
	}
	entry.lastFact++
	fact.Number = entry.lastFact
	entry.facts = append(entry.facts, fact)
	entry.facts = entry.facts[max(0, len(entry.facts)-mostFacts):]
	ring(entry.wished)
}

// View is what the master has told last, and whether that answers what it was told last. nil: it is not there.
func (l *Links) View(job types.UID) (view *platformpb.JobView, current bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	entry := l.jobs[job]
	if entry == nil || entry.view == nil {
		return nil, false
	}
	return entry.view, entry.view.GetGeneration() == entry.current
}

// sameView: that training goes on, or that facts have come, is no news.
func sameView(a, b *platformpb.JobView) bool {
	if a == nil || b == nil {
		return a == b
	}
	one, other := proto.CloneOf(a), proto.CloneOf(b)
	one.Step, other.Step = nil, nil
	one.Facts, other.Facts = nil, nil
	return proto.Equal(one, other)
}

func ring(bell chan struct{}) {
	select {
	case bell <- struct{}{}:
	default:
	}
}

// takeWish is the wish that is to be sent now; nil: the stream has sent that of generation told, and there is no other.
// A stream that has just begun has told 0, and its master knows nothing.
func (l *Links) takeWish(e *entry, told uint64) *platformpb.PlatformView {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e.wish == nil || e.wish.GetGeneration() == told {
		return nil
	}
	now := time.Now()
	if told == 0 {
		e.current++ // generations count within a stream, and grow across streams
		e.wish, e.wishedAt = asOf(now, e.wish, e.wishedAt), now
		e.wish.Generation = e.current
	}
	return proto.CloneOf(e.wish)
}

// factsBehind are those that a stream has not sent yet, which has sent all up to that number.
func (l *Links) factsBehind(e *entry, sent uint64) []*platformpb.PlatformFact {
	l.mu.Lock()
	defer l.mu.Unlock()
	first, _ := slices.BinarySearchFunc(e.facts, sent+1, byNumber)
	return slices.Clone(e.facts[first:])
}

// sentFactTo notes what the stream has sent: a master that does not count facts is not told again.
func (l *Links) sentFactTo(e *entry, number uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.sentFact = number
}

func byNumber(fact *platformpb.PlatformFact, number uint64) int {
	return cmp.Compare(fact.GetNumber(), number)
}

// heard keeps what the master says; nil: it is not there any more.
func (l *Links) heard(e *entry, view *platformpb.JobView) {
	l.mu.Lock()
	changed := !sameView(e.view, view) || e.view.GetStep() != view.GetStep() && time.Since(e.stepped) >= stepsEvery
	e.happened = time.Now()
	if changed {
		e.stepped = e.happened
	}
	e.view = view
	taken := view.GetFacts()
	if view != nil && view.Facts == nil {
		taken = e.sentFact // a master that does not count them: what was sent is all that is known
	}
	has, _ := slices.BinarySearchFunc(e.facts, taken+1, byNumber)
	e.facts = e.facts[has:]
	l.mu.Unlock()
	if changed {
		l.changed(e.name)
	}
}
