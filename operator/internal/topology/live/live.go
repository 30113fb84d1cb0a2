// Package live reads the table of switches from a ConfigMap, hears when that changes, and writes on the pods of jobs
// where their nodes are.
package live

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"phalanx/operator/internal/topology"
)

// Where DLRover's guides have the table.
const (
	ConfigMapName = "node-topology-config"
	Key           = "topology_config"
)

// Topology is the table as the ConfigMap has it now. Safe for use by several goroutines.
type Topology struct {
	client client.Client
	events events.EventRecorder
	table  atomic.Pointer[topology.Table]
}

var _ reconcile.Reconciler = (*Topology)(nil)

// +kubebuilder:rbac:groups="",resources=configmaps,verbs=get;list;watch,resourceNames=node-topology-config,namespace=system
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Setup adds the reading and the writing to a manager, whose cache has the ConfigMap of one namespace alone.
func Setup(manager ctrl.Manager, workers int) (*Topology, error) {
	t := newTopology(manager.GetClient(), manager.GetEventRecorder("phalanx-operator"))
	err := builder.ControllerManagedBy(manager).
		Named("topology").
		For(&corev1.Pod{}, builder.WithPredicates(predicate.NewPredicateFuncs(t.lacks))).
		Watches(&corev1.ConfigMap{}, t.configHandler()).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).
		Complete(t)
	if err != nil {
		return nil, fmt.Errorf("setting up the topology: %w", err)
	}
	return t, nil
}

func newTopology(reader client.Client, recorder events.EventRecorder) *Topology {
	t := &Topology{client: reader, events: recorder}
	t.table.Store(&topology.Table{})
	return t
}

// Table is the one of now.
func (t *Topology) Table() *topology.Table { return t.table.Load() }

type requests = workqueue.TypedRateLimitingInterface[reconcile.Request]

func (t *Topology) configHandler() handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, event event.CreateEvent, queue requests) { t.read(ctx, event.Object, queue) },
		UpdateFunc: func(ctx context.Context, event event.UpdateEvent, queue requests) {
			t.read(ctx, event.ObjectNew, queue)
		},
		DeleteFunc: func(ctx context.Context, _ event.DeleteEvent, queue requests) {
			t.use(ctx, &topology.Table{}, queue)
		},
	}
}

// read takes over what the ConfigMap says, and tells people what of it is wrong.
func (t *Topology) read(ctx context.Context, object client.Object, queue requests) {
	config, ok := object.(*corev1.ConfigMap)
	if !ok || config.Name != ConfigMapName {
		return
	}
	text, there := config.Data[Key]
	table, warnings := topology.Parse(text)
	if !there && len(config.Data) > 0 {
		warnings = append(warnings, fmt.Sprintf("there is no key %s; there are %s", Key,
			strings.Join(slices.Sorted(maps.Keys(config.Data)), ", ")))
	}
	ctrl.Log.WithName("topology").Info("read", "namespace", config.Namespace, "nodes", table.Nodes(),
		"accessSwitches", table.Groups(), "wrong", warnings)
	if len(warnings) > 0 {
		message := strings.Join(warnings, "; ")
		t.events.Eventf(config, nil, corev1.EventTypeWarning, "TopologyLinesWrong", "ReadTopology", "%s",
			message[:min(len(message), 900)])
	}
	t.use(ctx, table, queue)
}

// use puts the table in its place first and looks for pods then: one that comes in between finds it.
func (t *Topology) use(ctx context.Context, table *topology.Table, queue requests) {
	t.table.Store(table)
	var pods corev1.PodList
	if err := t.client.List(ctx, &pods, client.UnsafeDisableDeepCopy); err != nil {
		ctrl.Log.WithName("topology").Error(err, "listing pods of the cache")
		return
	}
	for i := range pods.Items {
		if pod := &pods.Items[i]; t.lacks(pod) {
			queue.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(pod)})
		}
	}
}

func (t *Topology) lacks(object client.Object) bool {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return false
	}
	_, lacks := t.change(pod)
	return lacks
}

// change: pods that have ended keep what they had.
func (t *Topology) change(pod *corev1.Pod) (topology.Change, bool) {
	ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	if ended || pod.DeletionTimestamp != nil {
		return topology.Change{}, false
	}
	addresses := []string{pod.Status.HostIP}
	for _, host := range pod.Status.HostIPs {
		addresses = append(addresses, host.IP)
	}
	return t.Table().Change(pod.Labels, pod.Annotations, addresses...)
}

// Reconcile writes on one pod where its node is.
func (t *Topology) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	var pod corev1.Pod
	if err := t.client.Get(ctx, request.NamespacedName, &pod); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	change, lacks := t.change(&pod)
	if !lacks {
		return reconcile.Result{}, nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": change})
	if err != nil {
		return reconcile.Result{}, err
	}
	err = t.client.Patch(ctx, &pod, client.RawPatch(types.MergePatchType, patch))
	return reconcile.Result{}, client.IgnoreNotFound(err)
}
