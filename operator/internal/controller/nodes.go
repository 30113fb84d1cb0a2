package controller

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"phalanx/operator/internal/elasticjob"
	"phalanx/operator/internal/engine"
)

// nodeIndex finds the pods of a node in the cache.
const nodeIndex = "spec.nodeName"

// noticeIndex finds the nodes in the cache that are about to go.
const noticeIndex = "notice"

func nodeOf(object client.Object) []string {
	if pod, ok := object.(*corev1.Pod); ok && pod.Spec.NodeName != "" {
		return []string{pod.Spec.NodeName}
	}
	return nil
}

// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch

// nodes says how the nodes of pods are. That one is no more it takes from the API server alone: the cache may show a
// pod before it shows a new node, or that a node is in service again. Safe for use by several goroutines.
type nodes struct {
	cache   client.Reader
	server  client.Reader
	notices []string // taints by which somebody says that a node is about to go
}

// tell notes in pods how their nodes are. Of a pod that has ended nobody asks. What was asked before is not asked
// again, and what is found is added to it.
func (n *nodes) tell(ctx context.Context, pods []engine.Pod, asked map[string]host) error {
	for i := range pods {
		name := pods[i].Host
		ended := pods[i].State == engine.Succeeded || pods[i].State == engine.Failed
		if name == "" || ended && !pods[i].Leaving {
			continue
		}
		found, known := asked[name]
		if !known {
			var err error
			if found, err = n.look(ctx, name); err != nil {
				return fmt.Errorf("looking at node %s: %w", name, err)
			}
			asked[name] = found
		}
		pods[i].Node, pods[i].Notice = found.state, found.notice
	}
	return nil
}

// host is a node as pods on it see it.
type host struct {
	state  engine.Node
	notice string
}

func (n *nodes) see(node *corev1.Node) host {
	return host{elasticjob.NodeState(node), elasticjob.Notice(node, n.notices)}
}

func (n *nodes) look(ctx context.Context, name string) (host, error) {
	var node corev1.Node
	key := types.NamespacedName{Name: name}
	err := n.cache.Get(ctx, key, &node)
	if err == nil {
		if found := n.see(&node); found.state != engine.NodeGone {
			return found, nil
		}
	} else if !apierrors.IsNotFound(err) {
		return host{}, err
	}
	node = corev1.Node{}
	err = n.server.Get(ctx, key, &node)
	switch {
	case err == nil:
		return n.see(&node), nil
	case apierrors.IsNotFound(err):
		return host{state: engine.NodeGone}, nil
	}
	return host{}, err
}

// going are the nodes that are about to go, by name.
func (n *nodes) going(ctx context.Context) ([]string, error) {
	var found corev1.NodeList
	err := n.cache.List(ctx, &found, client.MatchingFields{noticeIndex: "yes"}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("listing the nodes that are about to go: %w", err)
	}
	var names []string
	for i := range found.Items {
		names = append(names, found.Items[i].Name)
	}
	slices.Sort(names)
	return names, nil
}

// noticed indexes a node that is about to go.
func (n *nodes) noticed(object client.Object) []string {
	if node, ok := object.(*corev1.Node); ok && elasticjob.Notice(node, n.notices) != "" {
		return []string{"yes"}
	}
	return nil
}

// news lets through what changes how a node is: of its heartbeats the jobs need not hear.
func (n *nodes) news() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return true },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok := e.ObjectOld.(*corev1.Node)
			after, also := e.ObjectNew.(*corev1.Node)
			return ok && also && n.see(before) != n.see(after)
		},
		DeleteFunc: func(event.DeleteEvent) bool { return true },
	}
}

// jobsOn leads from a node to the jobs that have pods on it.
func (n *nodes) jobsOn(ctx context.Context, node client.Object) []reconcile.Request {
	var pods corev1.PodList
	err := n.cache.List(ctx, &pods, client.MatchingFields{nodeIndex: node.GetName()}, client.UnsafeDisableDeepCopy)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "listing the pods of a node")
		return nil
	}
	jobs := map[types.NamespacedName]bool{}
	var requests []reconcile.Request
	for i := range pods.Items {
		job := types.NamespacedName{
			Namespace: pods.Items[i].Namespace, Name: pods.Items[i].Labels[elasticjob.LabelName],
		}
		if !jobs[job] {
			jobs[job] = true
			requests = append(requests, reconcile.Request{NamespacedName: job})
		}
	}
	return requests
}
