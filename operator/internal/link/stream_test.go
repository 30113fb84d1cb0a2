package link

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"phalanx/operator/internal/link/platformpb"
)

const token = "3f1c9a5be07d24681357bd90aa44ce21"

// fakeMaster answers each stream by what the test says, within this process and its clock.
type fakeMaster struct {
	listener *bufconn.Listener
	mu       sync.Mutex
	dialled  []time.Time
	streams  int
	facts    []string
}

// attached is a stream of a platform; number counts from 1.
type attached struct {
	grpc.ServerStream
	master *fakeMaster
	number int
}

func startMaster(t *testing.T, answer func(attached) error) *fakeMaster {
	t.Helper()
	m := &fakeMaster{listener: bufconn.Listen(1 << 16)}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(masterTLS(t))), grpc.UnknownServiceHandler(
		func(_ any, stream grpc.ServerStream) error {
			m.mu.Lock()
			m.streams++
			number := m.streams
			m.mu.Unlock()
			return answer(attached{stream, m, number})
		}))
	go server.Serve(m.listener) //nolint:errcheck // ends with the test
	t.Cleanup(server.Stop)
	return m
}

// masterTLS is that of a master which has the token.
func masterTLS(t *testing.T) *tls.Config {
	t.Helper()
	of, err := authorityOf(token)
	if err != nil {
		t.Fatal(err)
	}
	trusted, err := of.certificate()
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := serialNumber()
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, DNSNames: []string{masterName}, NotBefore: notBefore, NotAfter: notAfter,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, trusted, key.Public(), of.key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
}

func (m *fakeMaster) dial(ctx context.Context, _ string) (net.Conn, error) {
	m.mu.Lock()
	m.dialled = append(m.dialled, time.Now())
	m.mu.Unlock()
	return m.listener.DialContext(ctx)
}

// greet takes the hello, and answers as a master that is the job's.
func (a attached) greet() error {
	if err := a.RecvMsg(&platformpb.PlatformMessage{}); err != nil {
		return err
	}
	return a.SendMsg(&platformpb.JobView{Phase: "running", Facts: proto.Uint64(0)})
}

// hear keeps facts until the stream ends, or it has heard so many messages.
func (a attached) hear(messages int) error {
	for range messages {
		message := &platformpb.PlatformMessage{}
		if err := a.RecvMsg(message); err != nil {
			return err
		}
		if fact := message.GetFact(); fact != nil {
			a.master.mu.Lock()
			a.master.facts = append(a.master.facts, fact.GetSentence())
			a.master.mu.Unlock()
		}
	}
	return nil
}

func report(l *Links, first, count int) (want []string) {
	for i := range count {
		sentence := fmt.Sprint("fact ", first+i)
		l.Report("uid", &platformpb.PlatformFact{Sentence: sentence})
		want = append(want, sentence)
	}
	return want
}

// Facts wait for a master that takes them: while none is there, while it is not elected, and where the stream breaks
// before they were sent.
func TestFactsWaitForWhoTakesThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := startMaster(t, func(a attached) error {
			if a.number <= 3 {
				a.RecvMsg(&platformpb.PlatformMessage{}) //nolint:errcheck // the hello
				synctest.Wait()                          // whoever does not wait for an answer has sent all
				return status.Error(codes.Unavailable, "this master is not elected yet")
			}
			if err := a.greet(); err != nil {
				return err
			}
			return a.hear(1_000)
		})
		l := New(t.Context(), Self{Version: "test"}, func(types.NamespacedName) {})
		l.dial = m.dial
		l.Open("uid", types.NamespacedName{}, Master{Token: token})
		l.Tell("uid", &platformpb.PlatformView{WantedNodes: 2})
		want := report(l, 0, 10)
		time.Sleep(time.Second)
		want = append(want, report(l, 10, 3)...)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if !slices.Equal(m.facts, want) {
			t.Errorf("the master has %v", m.facts)
		}
		if m.streams != 4 || len(m.dialled) != m.streams {
			t.Errorf("%d connections for %d streams", len(m.dialled), m.streams)
		}
	})
}

// withoutStream is a set with one job, uid, whose master nobody dials.
func withoutStream(t *testing.T) (*Links, *entry) {
	l := New(t.Context(), Self{Version: "test"}, func(types.NamespacedName) {})
	e := &entry{wished: make(chan struct{}, 1), stirred: make(chan struct{}, 1)}
	l.jobs["uid"] = e
	return l, e
}

// breaking is a stream that ends behind so many messages.
type breaking struct {
	grpc.ClientStream
	left int
	sent []string
}

func (b *breaking) SendMsg(message any) error {
	if b.left == 0 {
		return io.EOF
	}
	b.left--
	b.sent = append(b.sent, message.(*platformpb.PlatformMessage).GetFact().GetSentence())
	return nil
}

// What a stream has not taken goes over the next one, before what has come since; of too many the oldest are dropped.
func TestFactsAreGivenBackInTheirOrder(t *testing.T) {
	l, e := withoutStream(t)
	want := report(l, 0, 30)
	first, second := &breaking{left: 10}, &breaking{left: 1000}
	sent, err := l.sendFacts(e, first, 0)
	if err == nil || sent != 10 {
		t.Fatalf("the stream has sent %d: %v", sent, err)
	}
	l.heard(e, &platformpb.JobView{Facts: proto.Uint64(7)}) // the others were on their way when it broke
	want = append(want, report(l, 30, 20)...)
	if sent, err = l.sendFacts(e, second, 0); err != nil || sent != 50 {
		t.Fatalf("the stream has sent %d: %v", sent, err)
	}
	want = append(want, report(l, 50, 1)...)
	if sent, err = l.sendFacts(e, second, sent); err != nil || sent != 51 {
		t.Fatalf("the stream has sent %d: %v", sent, err)
	}
	if !slices.Equal(first.sent, want[:10]) || !slices.Equal(second.sent, want[7:]) {
		t.Errorf("sent: %v, and then %v", first.sent, second.sent)
	}

	want = append(want, report(l, 51, mostFacts)...)
	third := &breaking{left: 1000}
	if _, err := l.sendFacts(e, third, 0); err != nil || !slices.Equal(third.sent, want[len(want)-mostFacts:]) {
		t.Errorf("%v, sent: %v", err, third.sent)
	}
}

// What a stream had on its way when it broke is said again; what the master has is not.
func TestFactsAreSaidUntilTheMasterHasThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := startMaster(t, func(a attached) error {
			if err := a.greet(); err != nil {
				return err
			}
			if a.number == 1 {
				if err := a.hear(4); err != nil { // a wish and three facts
					return err
				}
				if err := a.SendMsg(&platformpb.JobView{Phase: "running", Facts: proto.Uint64(2)}); err != nil {
					return err
				}
				synctest.Wait()
				return status.Error(codes.Unavailable, "the master ends")
			}
			return a.hear(1_000)
		})
		l := New(t.Context(), Self{Version: "test"}, func(types.NamespacedName) {})
		l.dial = m.dial
		l.Open("uid", types.NamespacedName{}, Master{Token: token})
		l.Tell("uid", &platformpb.PlatformView{WantedNodes: 2})
		want := report(l, 0, 3)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if want = append(want, want[2]); !slices.Equal(m.facts, want) {
			t.Errorf("the master has %v", m.facts)
		}
	})
}

// A master that does not count them is told once.
func TestAnOlderMasterHearsOfAFactOnce(t *testing.T) {
	l, e := withoutStream(t)
	want := report(l, 0, 3)
	first, second := &breaking{left: 1000}, &breaking{left: 1000}
	sent, err := l.sendFacts(e, first, 0)
	if err != nil {
		t.Fatal(err)
	}
	want = append(want, report(l, 3, 1)...)
	if _, err := l.sendFacts(e, first, sent); err != nil {
		t.Fatal(err)
	}
	l.heard(e, &platformpb.JobView{})
	if _, err := l.sendFacts(e, second, 0); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(first.sent, want) || len(second.sent) != 0 {
		t.Errorf("sent: %v, and then %v", first.sent, second.sent)
	}
}

// A node that goes sooner than was told is news; that time goes by is none.
func TestANodeThatGoesSoonerIsNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, e := withoutStream(t)
		tell := func(left time.Duration) uint64 {
			l.Tell("uid", &platformpb.PlatformView{Departures: []*platformpb.Departure{
				{Address: "10.0.0.7", LeftMs: left.Milliseconds()},
			}})
			return e.current
		}
		tell(time.Minute)
		time.Sleep(20 * time.Second)
		if got := tell(40*time.Second + time.Millisecond); got != 1 {
			t.Errorf("the same time is news: %d", got)
		}
		if got := tell(5 * time.Second); got != 2 {
			t.Errorf("a node that goes in 5 s is no news: %d", got)
		}
		time.Sleep(10 * time.Second)
		if got := tell(0); got != 2 {
			t.Errorf("that its time is over is news: %d", got)
		}
		time.Sleep(time.Minute)
		if wish := l.takeWish(e, 0); wish.GetDepartures()[0].GetLeftMs() != 0 {
			t.Errorf("a new stream says %v", wish)
		}
	})
}

// Whom another platform has replaced leaves the master to it.
func TestWhoIsReplacedStaysAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := startMaster(t, func(a attached) error {
			if err := a.greet(); err != nil {
				return err
			}
			return status.Error(codes.Aborted, "the platform has come again")
		})
		l := New(t.Context(), Self{Version: "test"}, func(types.NamespacedName) {})
		l.dial = m.dial
		l.Open("uid", types.NamespacedName{}, Master{Token: token})
		for range 60 {
			time.Sleep(time.Second)
			l.Tell("uid", &platformpb.PlatformView{WantedNodes: 2})
		}
		synctest.Wait()
		if len(m.dialled) < 3 || len(m.dialled) > 4 {
			t.Errorf("it has dialled at %v", m.dialled)
		}
		for i := range len(m.dialled) - 1 {
			if gap := m.dialled[i+1].Sub(m.dialled[i]); gap < replacedMin<<i {
				t.Errorf("after %v again", gap)
			}
		}
	})
}

// A wish goes once over a stream: what it says of time is of when it was told.
func TestAFactDoesNotRepeatTheWish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wishes := 0
		m := startMaster(t, func(a attached) error {
			if err := a.greet(); err != nil {
				return err
			}
			for {
				message := &platformpb.PlatformMessage{}
				if err := a.RecvMsg(message); err != nil {
					return err
				}
				if message.GetView() != nil {
					wishes++
				}
			}
		})
		l := New(t.Context(), Self{Version: "test"}, func(types.NamespacedName) {})
		l.dial = m.dial
		l.Open("uid", types.NamespacedName{}, Master{Token: token})
		l.Tell("uid", &platformpb.PlatformView{WantedNodes: 2})
		for i := range 5 {
			time.Sleep(time.Second)
			report(l, i, 1)
		}
		l.Tell("uid", &platformpb.PlatformView{WantedNodes: 3})
		time.Sleep(time.Second)
		synctest.Wait()
		if wishes != 2 {
			t.Errorf("%d wishes", wishes)
		}
	})
}

// A master that is not there is a line of the log for each reason, however often it is dialled.
func TestTheLogSaysOnceWhyNobodyIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		ctx := log.IntoContext(t.Context(), zap.New(zap.WriteTo(&text)))
		l := New(ctx, Self{Version: "test"}, func(types.NamespacedName) {})
		port := 40_000
		l.dial = func(context.Context, string) (net.Conn, error) {
			port++
			if port%2 == 0 {
				return nil, io.EOF
			}
			return nil, fmt.Errorf("read tcp 127.0.0.1:%d->10.0.0.7:50001: connection reset by peer", port)
		}
		l.Open("uid", types.NamespacedName{}, Master{})
		time.Sleep(time.Minute)
		synctest.Wait()
		if lines := strings.Count(text.String(), "\n"); lines != 2 {
			t.Errorf("%d lines: %.2000s", lines, text.String())
		}
	})
}
