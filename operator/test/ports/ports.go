// Package ports finds ports for programs that tests start.
package ports

import (
	"net"
	"testing"
)

// Free is a port of 127.0.0.1 at which nobody listens yet.
func Free(t testing.TB) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}
