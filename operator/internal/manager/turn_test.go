package manager

import (
	"os"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"phalanx/operator/internal/link"
)

func TestATurnIsThatOfTheLease(t *testing.T) {
	scheme, err := Scheme()
	if err != nil {
		t.Fatal(err)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	server := fake.NewClientBuilder().WithScheme(scheme).Build()
	turn := Turn(server, Options{LeaderElection: true, LeaderNamespace: "phalanx"})
	lease := &coordinationv1.Lease{}
	lease.Name, lease.Namespace, lease.UID = leaseName, "phalanx", "uid-7"
	refused := func(why string) {
		t.Helper()
		if got, err := turn(t.Context()); err == nil {
			t.Errorf("%s its turn is %v", why, got)
		}
	}
	hold := func(holder string, transitions int32) {
		t.Helper()
		lease.Spec.HolderIdentity, lease.Spec.LeaseTransitions = ptr.To(holder), ptr.To(transitions)
		write := func() error { return server.Update(t.Context(), lease) }
		if lease.ResourceVersion == "" {
			write = func() error { return server.Create(t.Context(), lease) }
		}
		if err := write(); err != nil {
			t.Fatal(err)
		}
	}
	refused("without a lease")
	hold("another_0f3c", 7)
	refused("while another has the lease")
	hold(host+"_0f3c", 6)
	want := link.Turn{Lease: "uid-7", Epoch: 7}
	if got, err := turn(t.Context()); got != want || err != nil {
		t.Errorf("it is %v, %v", got, err)
	}
	hold("another_0f3c", 7)
	if got, err := turn(t.Context()); got != want || err != nil {
		t.Errorf("another one has the lease since, and its own is %v, %v", got, err)
	}
	if Turn(server, Options{}) != nil {
		t.Error("without a lease somebody is counted")
	}
}
