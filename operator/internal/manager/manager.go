// Package manager makes the controller-runtime manager that the operator and its tests run in: what it caches, how fast
// it may ask, where it answers.
package manager

import (
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync/atomic"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"phalanx/operator/api/v1alpha1"
	"phalanx/operator/internal/elasticjob"
	"phalanx/operator/internal/link"
	"phalanx/operator/internal/topology/live"
)

// leaseName is the lease by which several operators agree who works.
const leaseName = "phalanx-operator"

// Options are the manager's.
type Options struct {
	HealthAddress  string // "0": no probes
	MetricsAddress string // "0": no metrics
	MetricsCertDir string // with tls.crt and tls.key; empty: a certificate made at each start
	// TopologyNamespace has the ConfigMap node-topology-config; empty: there is none.
	TopologyNamespace string
	LeaderElection    bool
	LeaderNamespace   string // empty: that of the operator's pod
	QPS               float64
	Burst             int
}

// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,verbs=get;create;update,namespace=system
// +kubebuilder:rbac:groups="",resources=events,verbs=create;patch,namespace=system
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

// Declare adds the options to a set of flags.
func (o *Options) Declare(flags *flag.FlagSet) {
	flags.StringVar(&o.HealthAddress, "health-probe-bind-address", ":8081",
		"where /healthz and /readyz answer; 0: nowhere")
	flags.StringVar(&o.MetricsAddress, "metrics-bind-address", "0",
		"where /metrics answers by HTTPS those whose token may get it; 0: nowhere")
	flags.StringVar(&o.MetricsCertDir, "metrics-cert-dir", "",
		"folder with tls.crt and tls.key of /metrics, read again when they change; without it a certificate of its own")
	flags.StringVar(&o.TopologyNamespace, "topology-namespace", "",
		"namespace of the ConfigMap node-topology-config, which says under which switches nodes are; empty: none is read")
	flags.BoolVar(&o.LeaderElection, "leader-elect", false, "let one of several operators work, the others wait")
	flags.StringVar(&o.LeaderNamespace, "leader-election-namespace", "",
		"namespace of the lease by which they agree; empty: that of the operator's pod")
	flags.Float64Var(&o.QPS, "kube-api-qps", 500, "requests a second to the API server")
	flags.IntVar(&o.Burst, "kube-api-burst", 1000, "how many more may come at once")
}

// Scheme knows the kinds that the operator reads and writes.
func Scheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return nil, err
	}
	return scheme, v1alpha1.AddToScheme(scheme)
}

// ofTopology is the one ConfigMap that is read at all.
func ofTopology(options Options) cache.ByObject {
	return cache.ByObject{
		Namespaces: map[string]cache.Config{options.TopologyNamespace: {
			FieldSelector: fields.OneTermEqualSelector("metadata.name", live.ConfigMapName),
		}},
	}
}

// Turn says which of the operators that go by the lease this one is; it is called by one that works. `server` reads
// from the API server. nil: there is no lease.
func Turn(server client.Reader, options Options) func(context.Context) (link.Turn, error) {
	if !options.LeaderElection {
		return nil
	}
	var known atomic.Pointer[link.Turn]
	return func(ctx context.Context) (link.Turn, error) {
		if turn := known.Load(); turn != nil {
			return *turn, nil // who loses the lease ends
		}
		turn, err := readTurn(ctx, server, options)
		if err == nil {
			known.Store(&turn)
		}
		return turn, err
	}
}

func readTurn(ctx context.Context, server client.Reader, options Options) (link.Turn, error) {
	namespace, err := leaseNamespace(options)
	if err != nil {
		return link.Turn{}, err
	}
	host, err := os.Hostname()
	if err != nil {
		return link.Turn{}, err
	}
	lease := &coordinationv1.Lease{}
	key := types.NamespacedName{Namespace: namespace, Name: leaseName}
	if err := server.Get(ctx, key, lease); err != nil {
		return link.Turn{}, fmt.Errorf("reading lease %s: %w", key, err)
	}
	// controller-runtime holds it as HOST_UUID. One that has lost it, and does not know it yet, has no turn.
	if holder := ptr.Deref(lease.Spec.HolderIdentity, ""); !strings.HasPrefix(holder, host+"_") {
		return link.Turn{}, fmt.Errorf("lease %s is held by %q", key, holder)
	}
	epoch := uint64(ptr.Deref(lease.Spec.LeaseTransitions, 0)) + 1
	return link.Turn{Lease: string(lease.UID), Epoch: epoch}, nil
}

// leaseNamespace is where controller-runtime puts the lease.
func leaseNamespace(options Options) (string, error) {
	if options.LeaderNamespace != "" {
		return options.LeaderNamespace, nil
	}
	const ofPod = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
	text, err := os.ReadFile(ofPod)
	if err != nil {
		return "", fmt.Errorf("--leader-election-namespace is not given, and this is no pod: %w", err)
	}
	return string(text), nil
}

// onlyHTTP1: nobody streams metrics, and HTTP/2 has had floods of resets.
func onlyHTTP1(config *tls.Config) { config.NextProtos = []string{"http/1.1"} }

// New makes a manager. Of pods and services it keeps those of jobs alone, and of them what is read.
func New(config *rest.Config, options Options) (ctrl.Manager, error) {
	scheme, err := Scheme()
	if err != nil {
		return nil, fmt.Errorf("building the scheme: %w", err)
	}
	ofJobs, err := labels.NewRequirement(elasticjob.LabelName, selection.Exists, nil)
	if err != nil {
		return nil, err
	}
	selected := cache.ByObject{Label: labels.NewSelector().Add(*ofJobs), Transform: elasticjob.Trim}
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = float32(options.QPS), options.Burst
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: scheme,
		Cache: cache.Options{
			DefaultTransform: cache.TransformStripManagedFields(),
			ByObject: map[client.Object]cache.ByObject{
				&corev1.Pod{}: selected, &corev1.Service{}: selected, &corev1.ConfigMap{}: ofTopology(options),
				&corev1.Node{}: {Transform: elasticjob.Trim},
			},
		},
		Metrics: server.Options{
			BindAddress: options.MetricsAddress, SecureServing: true, CertDir: options.MetricsCertDir,
			FilterProvider: filters.WithAuthenticationAndAuthorization, TLSOpts: []func(*tls.Config){onlyHTTP1},
		},
		HealthProbeBindAddress:        options.HealthAddress,
		LeaderElection:                options.LeaderElection,
		LeaderElectionID:              leaseName,
		LeaderElectionNamespace:       options.LeaderNamespace,
		LeaderElectionReleaseOnCancel: true,
	})
	if err != nil {
		return nil, fmt.Errorf("making the manager: %w", err)
	}
	if err := manager.AddHealthzCheck("alive", healthz.Ping); err != nil {
		return nil, err
	}
	return manager, manager.AddReadyzCheck("alive", healthz.Ping)
}
