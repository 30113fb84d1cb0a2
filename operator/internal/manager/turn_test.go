package manager

import (
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

func TestEpochIsThatOfTheLease(t *testing.T) {
	scheme, err := Scheme()
	if err != nil {
		t.Fatal(err)
	}
	server := fake.NewClientBuilder().WithScheme(scheme).Build()
	epoch := Epoch(server, Options{LeaderElection: true, LeaderNamespace: "phalanx"})
	if got, err := epoch(t.Context()); err == nil {
		t.Errorf("without a lease it is %d", got)
	}
	lease := &coordinationv1.Lease{}
	lease.Name, lease.Namespace = leaseName, "phalanx"
	lease.Spec.LeaseTransitions = ptr.To(int32(6))
	if err := server.Create(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	if got, err := epoch(t.Context()); got != 7 || err != nil {
		t.Errorf("it is %d, %v", got, err)
	}
	lease.Spec.LeaseTransitions = ptr.To(int32(7))
	if err := server.Update(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	if got, err := epoch(t.Context()); got != 7 || err != nil {
		t.Errorf("another one has the lease, and this one's is %d, %v", got, err)
	}
	if Epoch(server, Options{}) != nil {
		t.Error("without a lease somebody is counted")
	}
}
