package link

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"k8s.io/apimachinery/pkg/types"

	"phalanx/operator/internal/link/platformpb"
)

const token = "3f1c9a5be07d24681357bd90aa44ce21"

// fakeMaster answers each stream by what the test says, within this process and its clock.
type fakeMaster struct {
	listener *bufconn.Listener
	mu       sync.Mutex
	dialled  []time.Time
	streams  int
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
	return a.SendMsg(&platformpb.JobView{Phase: "running"})
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
		l := New(t.Context(), "test", func(types.NamespacedName) {})
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
