//go:build apiserver

package apiserver

import (
	"context"
	"fmt"
	"hash/fnv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const lastResort = "node-of-last-resort"

// holding is the annotation of pods that take their time to end: the kubelet leaves them terminating.
const holding = "test/holding"

// kubelet does for the pods of a stage what scheduler and kubelets do: it binds them, says that they run, and removes
// them when they are deleted. It runs none of them.
type kubelet struct {
	t     *testing.T
	ctx   context.Context
	slots chan struct{} // as many pods are tended at a time
	nodes uint32
	binds bool // there is no scheduler
}

func startKubelet(s *stage) *kubelet { return startKubelets(s, 8) }

// startKubelets has so many nodes.
func startKubelets(s *stage, nodes uint32) *kubelet {
	s.t.Helper()
	addNodes(s.t, nodes)
	return tendPods(s, nodes, true)
}

// tendPods leaves pods to a scheduler where it does not bind them.
func tendPods(s *stage, nodes uint32, binds bool) *kubelet {
	k := &kubelet{s.t, s.t.Context(), make(chan struct{}, 32), nodes, binds}
	tend := func(object any) {
		if pod, ok := object.(*corev1.Pod); ok && (pod.Status.Phase == corev1.PodPending || pod.DeletionTimestamp != nil) {
			go k.tend(pod.DeepCopy())
		}
	}
	s.listen(&corev1.Pod{}, toolscache.ResourceEventHandlerFuncs{
		AddFunc: tend, UpdateFunc: func(_, object any) { tend(object) },
	})
	return k
}

// addNodes makes those that nodeFor chooses from, where they are not there.
func addNodes(t *testing.T, count uint32) {
	t.Helper()
	for i := range count {
		addNode(t, fmt.Sprintf("node-%d", i))
	}
	addNode(t, lastResort)
}

// addNode makes a node that is ready and has room for nothing, so that no scheduler puts a pod there.
func addNode(t *testing.T, name string) {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if err := cluster.client.Create(t.Context(), node); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

// again tends all pods of a stage: requests of before may have found no API server.
func (k *kubelet) again(s *stage) {
	k.t.Helper()
	var pods corev1.PodList
	if err := cluster.client.List(k.ctx, &pods, client.InNamespace(s.namespace)); err != nil {
		k.t.Fatal(err)
	}
	for i := range pods.Items {
		go k.tend(&pods.Items[i])
	}
}

// tend tries again where the API server could not do what it was asked for.
func (k *kubelet) tend(pod *corev1.Pod) {
	for tries := 0; ; tries++ {
		err := k.tendOnce(pod)
		if err == nil || k.ctx.Err() != nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return
		}
		k.t.Logf("kubelet: %s: %v", pod.Name, err)
		if tries == 5 {
			return
		}
		select {
		case <-time.After(time.Second):
		case <-k.ctx.Done():
			return
		}
		fresh := &corev1.Pod{}
		if err := cluster.client.Get(k.ctx, client.ObjectKeyFromObject(pod), fresh); err == nil {
			pod = fresh
		}
	}
}

func (k *kubelet) tendOnce(pod *corev1.Pod) error {
	k.slots <- struct{}{}
	defer func() { <-k.slots }()
	switch {
	case pod.DeletionTimestamp != nil && pod.Annotations[holding] == "":
		return cluster.client.Delete(k.ctx, pod, client.GracePeriodSeconds(0), client.Preconditions{UID: &pod.UID})
	case pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodPending:
	case pod.Spec.NodeName == "" && (!k.binds || len(pod.Spec.SchedulingGates) > 0):
	case pod.Spec.NodeName == "":
		binding := &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: nodeFor(pod, k.nodes)}}
		return cluster.client.SubResource("binding").Create(k.ctx, pod, binding)
	default:
		pod.Status = running(pod)
		return cluster.client.Status().Update(k.ctx, pod)
	}
	return nil
}

// nodeFor is one that the pod does not avoid.
func nodeFor(pod *corev1.Pod, nodes uint32) string {
	avoided := map[string]bool{}
	if affinity := pod.Spec.Affinity; affinity != nil && affinity.NodeAffinity != nil {
		for _, term := range affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
			for _, field := range term.MatchFields {
				avoided[field.Values[0]] = field.Operator == corev1.NodeSelectorOpNotIn
			}
		}
	}
	sum := fnv.New32()
	sum.Write([]byte(pod.Name))
	for i := range nodes {
		if node := fmt.Sprintf("node-%d", (sum.Sum32()+i)%nodes); !avoided[node] {
			return node
		}
	}
	return lastResort
}

func running(pod *corev1.Pod) corev1.PodStatus {
	now := metav1.Now()
	status := corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &now, PodIP: "10.1.2.3"}
	for _, kind := range []corev1.PodConditionType{corev1.PodScheduled, corev1.ContainersReady, corev1.PodReady} {
		status.Conditions = append(status.Conditions, corev1.PodCondition{
			Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: now,
		})
	}
	for _, container := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{
			Name: container.Name, Ready: true,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		})
	}
	return status
}

// end says that a pod's containers have exited, and that the pod is over.
func (k *kubelet) end(pod corev1.Pod, code int32) {
	k.t.Helper()
	k.endAt(pod, code, time.Now())
}

func (k *kubelet) endAt(pod corev1.Pod, code int32, at time.Time) {
	k.t.Helper()
	status := pod.Status.DeepCopy()
	status.Phase = corev1.PodFailed
	if code == 0 {
		status.Phase = corev1.PodSucceeded
	}
	for i := range status.ContainerStatuses {
		status.ContainerStatuses[i].Ready = false
		status.ContainerStatuses[i].State = corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: "Error", FinishedAt: metav1.NewTime(at)},
		}
	}
	k.report(pod, *status)
}

// report writes a pod's status.
func (k *kubelet) report(pod corev1.Pod, status corev1.PodStatus) {
	k.t.Helper()
	for {
		reported := &corev1.Pod{}
		if err := cluster.client.Get(k.ctx, client.ObjectKeyFromObject(&pod), reported); err != nil {
			k.t.Fatal(err)
		}
		reported.Status = status
		err := cluster.client.Status().Update(k.ctx, reported)
		if err == nil {
			return
		}
		if !apierrors.IsConflict(err) { // what the kubelet itself says of the pod may come between
			k.t.Fatal(err)
		}
	}
}
