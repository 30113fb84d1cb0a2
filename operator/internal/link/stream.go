package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"phalanx/operator/internal/link/platformpb"
)

const (
	attachMethod = "/phalanx.v1.PlatformLink/Attach"
	// A master that is silent for both is believed dead.
	pingEvery  = 10 * time.Second
	pingAnswer = 5 * time.Second
	dialLimit  = 5 * time.Second
	// A master turns a connection away over which nothing was said for 10 s.
	silentFor = 2 * time.Second
)

// keep has a stream to the job's master until ctx ends.
func (l *Links) keep(ctx context.Context, e *entry) {
	logger := log.FromContext(ctx).WithName("link").WithValues("job", e.name.String())
	var next redial
	said := map[string]bool{}
	for {
		attached, err := l.try(ctx, e)
		if attached {
			clear(said)
			l.heard(e, nil)
		}
		if ctx.Err() != nil {
			return
		}
		if err != nil && !said[withoutNumbers(err.Error())] {
			said[withoutNumbers(err.Error())] = true
			logger.Info("the job's master is not there", "why", err.Error())
		}
		next.failed(attached, err)
		l.rest(ctx, e, &next)
	}
}

// withoutNumbers is what a reason says of each try: the port that was dialled from is always another.
func withoutNumbers(text string) string {
	return strings.Map(func(letter rune) rune {
		if letter >= '0' && letter <= '9' {
			return -1
		}
		return letter
	}, text)
}

// try dials once: a connection, and a stream over it until it ends. attached: the master has answered.
func (l *Links) try(ctx context.Context, e *entry) (attached bool, err error) {
	var turn Turn
	if l.self.Turn != nil {
		if turn, err = l.self.Turn(ctx); err != nil {
			return false, fmt.Errorf("which operator this is: %w", err)
		}
	}
	connection, err := l.reach(ctx, e)
	if err != nil {
		return false, err
	}
	defer connection.Close()
	return l.attach(ctx, e, connection, turn)
}

func (l *Links) hello(turn Turn) *platformpb.PlatformHello {
	return &platformpb.PlatformHello{
		Platform: "kubernetes", SoftwareVersion: l.self.Version, Instance: l.self.instance, Epoch: turn.Epoch,
		Lease: turn.Lease,
	}
}

// reach dials. What a stranger's silence costs is a connection, and not what it takes to make a certificate of the
// job's token: that is made when somebody is there.
func (l *Links) reach(ctx context.Context, e *entry) (net.Conn, error) {
	connection, err := l.dial(ctx, e.master.Address)
	if err != nil || e.transport != nil {
		return connection, err
	}
	began := time.Now()
	e.transport, err = l.credentialsOf(ctx, e.master.Token)
	if err == nil && time.Since(began) < silentFor {
		return connection, nil
	}
	connection.Close()
	if err != nil {
		return nil, err
	}
	return l.dial(ctx, e.master.Address) // it has waited for the keys of other jobs
}

func dialTCP(ctx context.Context, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: dialLimit}
	return dialer.DialContext(ctx, "tcp", address)
}

// once hands out a connection that is there. gRPC gets no second one: when to dial again is not its to say.
func once(connection net.Conn) func(context.Context, string) (net.Conn, error) {
	var taken atomic.Bool
	return func(context.Context, string) (net.Conn, error) {
		if taken.Swap(true) {
			return nil, errors.New("the connection is over")
		}
		return connection, nil
	}
}

// credentialsOf makes those of one token at a time: each takes a core and 16 MiB.
func (l *Links) credentialsOf(ctx context.Context, token string) (credentials.TransportCredentials, error) {
	l.deriving.Lock()
	defer l.deriving.Unlock()
	if ctx.Err() != nil { // the job has gone meanwhile
		return nil, ctx.Err()
	}
	config, err := TLSOfToken(token)
	if err != nil {
		return nil, fmt.Errorf("making a certificate of the job's token: %w", err)
	}
	return credentials.NewTLS(config), nil
}

// attach is one stream over a connection. attached: the master has answered.
func (l *Links) attach(ctx context.Context, e *entry, over net.Conn, turn Turn) (attached bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	connection, err := grpc.NewClient("passthrough:///"+e.master.Address, grpc.WithTransportCredentials(e.transport),
		grpc.WithContextDialer(once(over)),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: dialLimit, Backoff: backoff.DefaultConfig}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingEvery, Timeout: pingAnswer}),
		grpc.WithDisableServiceConfig())
	if err != nil {
		return false, err
	}
	defer connection.Close()
	stream, err := connection.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, attachMethod)
	if err != nil {
		return false, err
	}
	hello := &platformpb.PlatformMessage{Body: &platformpb.PlatformMessage_Hello{Hello: l.hello(turn)}}
	if err := stream.SendMsg(hello); err != nil {
		return false, reason(stream, err)
	}
	sent, answered := make(chan error, 1), make(chan struct{})
	go func() { sent <- l.send(ctx, e, stream, answered) }()
	defer func() { cancel(); <-sent }()
	for {
		view := &platformpb.JobView{}
		if err := stream.RecvMsg(view); err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return attached, err
		}
		if !attached {
			attached = true
			close(answered)
		}
		l.heard(e, view)
	}
}

// send writes what is new until the stream ends. Facts wait until the master has answered: one that is not elected yet
// takes none. Each stream sends all of which no master has said that it has them.
func (l *Links) send(ctx context.Context, e *entry, stream grpc.ClientStream, answered <-chan struct{}) error {
	told, sent, unanswered := uint64(0), uint64(0), answered
	for {
		select {
		case <-answered:
			var err error
			if sent, err = l.sendFacts(e, stream, sent); err != nil {
				return err
			}
		default:
		}
		if wish := l.takeWish(e, told); wish != nil {
			body := &platformpb.PlatformMessage_View{View: wish}
			if err := stream.SendMsg(&platformpb.PlatformMessage{Body: body}); err != nil {
				return err
			}
			told = wish.GetGeneration()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-unanswered:
			unanswered = nil
		case <-e.wished:
		}
	}
}

// sendFacts sends those behind that number, and returns the last one's.
func (l *Links) sendFacts(e *entry, stream grpc.ClientStream, sent uint64) (uint64, error) {
	for _, fact := range l.factsBehind(e, sent) {
		body := &platformpb.PlatformMessage_Fact{Fact: fact}
		if err := stream.SendMsg(&platformpb.PlatformMessage{Body: body}); err != nil {
			return sent, err
		}
		sent = fact.GetNumber()
		l.sentFactTo(e, sent)
	}
	return sent, nil
}

// reason is what the master has said of a stream whose sending has failed.
func reason(stream grpc.ClientStream, err error) error {
	if !errors.Is(err, io.EOF) {
		return err
	}
	if said := stream.RecvMsg(&platformpb.JobView{}); said != nil {
		return said
	}
	return fmt.Errorf("the stream ended: %w", err)
}
