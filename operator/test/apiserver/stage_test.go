//go:build apiserver

package apiserver

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"phalanx/operator/api/v1alpha1"
)

// stage is a namespace under watch: what is in it is read from a cache, and waiting is for the next event.
type stage struct {
	t         *testing.T
	namespace string
	cache     cache.Cache
	changed   chan struct{} // holds one token
}

func newStage(t *testing.T) *stage {
	t.Helper()
	s := &stage{t: t, namespace: namespace(t), changed: make(chan struct{}, 1)}
	t.Cleanup(s.clear)
	var err error
	s.cache, err = cache.New(cluster.admin, cache.Options{
		Scheme: cluster.client.Scheme(), DefaultNamespaces: map[string]cache.Config{s.namespace: {}},
	})
	if err != nil {
		t.Fatal(err)
	}
	go s.cache.Start(t.Context()) //nolint:errcheck // ends with the test
	for _, kind := range []client.Object{&corev1.Pod{}, &v1alpha1.ElasticJob{}, &v1alpha1.ScalePlan{}, &corev1.Service{}} {
		s.listen(kind, toolscache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { s.ring() }, UpdateFunc: func(any, any) { s.ring() }, DeleteFunc: func(any) { s.ring() },
		})
	}
	s.cache.WaitForCacheSync(t.Context())
	return s
}

// clear leaves the next test's operator nothing to do here.
func (s *stage) clear() {
	for _, kind := range []client.Object{&v1alpha1.ElasticJob{}, &v1alpha1.ScalePlan{}} {
		if err := cluster.client.DeleteAllOf(context.Background(), kind, client.InNamespace(s.namespace)); err != nil {
			s.t.Error(err)
		}
	}
	for _, kind := range []client.Object{&corev1.Pod{}, &corev1.Service{}} {
		err := cluster.client.DeleteAllOf(context.Background(), kind, client.InNamespace(s.namespace),
			client.GracePeriodSeconds(0))
		if err != nil {
			s.t.Error(err)
		}
	}
}

func (s *stage) listen(kind client.Object, handler toolscache.ResourceEventHandler) {
	s.t.Helper()
	informer, err := s.cache.GetInformer(s.t.Context(), kind)
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := informer.AddEventHandler(handler); err != nil {
		s.t.Fatal(err)
	}
}

func (s *stage) ring() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// await waits until is returns nil, and fails with its last error.
func (s *stage) await(is func() error) {
	s.t.Helper()
	s.awaitFor(patience, is)
}

// awaitLong is await for what thousands of pods have to do.
func (s *stage) awaitLong(is func() error) {
	s.t.Helper()
	s.awaitFor(10*patience, is)
}

func (s *stage) awaitFor(patience time.Duration, is func() error) {
	s.t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		err := is()
		if err == nil {
			return
		}
		select {
		case <-s.changed:
		case <-deadline.C:
			s.t.Fatalf("after %v: %v", patience, err)
		}
	}
}

// submit makes an object.
func (s *stage) submit(object client.Object) {
	s.t.Helper()
	object.SetNamespace(s.namespace)
	if err := cluster.client.Create(context.Background(), object); err != nil {
		s.t.Error(err)
	}
}

// remove deletes a job and, as the garbage collector would, its pods and services, and waits until they are gone.
func (s *stage) remove(job string) {
	s.t.Helper()
	object := &v1alpha1.ElasticJob{}
	object.Name, object.Namespace = job, s.namespace
	if err := cluster.client.Delete(s.t.Context(), object); err != nil {
		s.t.Fatal(err)
	}
	of := client.MatchingLabels{"elasticjob.dlrover/name": job}
	s.await(func() error {
		err := s.cache.Get(s.t.Context(), client.ObjectKeyFromObject(object), object)
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("%s is still there: %v", job, err)
		}
		return nil
	})
	for _, kind := range []client.Object{&corev1.Pod{}, &corev1.Service{}} {
		err := cluster.client.DeleteAllOf(s.t.Context(), kind, client.InNamespace(s.namespace), of,
			client.GracePeriodSeconds(0))
		if err != nil {
			s.t.Fatal(err)
		}
	}
}

// create makes an object, and waits until this stage's cache has it: what a test asks of it next is no surprise.
func (s *stage) create(object client.Object) {
	s.t.Helper()
	object.SetNamespace(s.namespace)
	if err := cluster.client.Create(s.t.Context(), object); err != nil {
		s.t.Fatal(err)
	}
	s.await(func() error {
		seen := object.DeepCopyObject().(client.Object)
		if err := s.cache.Get(s.t.Context(), client.ObjectKeyFromObject(object), seen); err != nil {
			return err
		}
		if seen.GetUID() != object.GetUID() {
			return fmt.Errorf("%s is still that of before", object.GetName())
		}
		return nil
	})
}

func (s *stage) patch(object client.Object, patch string) {
	s.t.Helper()
	raw := client.RawPatch(types.MergePatchType, []byte(patch))
	if err := cluster.client.Patch(s.t.Context(), object, raw); err != nil {
		s.t.Fatal(err)
	}
}

func (s *stage) job(name string) *v1alpha1.ElasticJob {
	s.t.Helper()
	var job v1alpha1.ElasticJob
	if err := s.cache.Get(s.t.Context(), client.ObjectKey{Namespace: s.namespace, Name: name}, &job); err != nil {
		s.t.Fatal(err)
	}
	return &job
}

// pods are the cache's own: to be read only.
func (s *stage) pods(role string) []corev1.Pod {
	s.t.Helper()
	var pods corev1.PodList
	err := s.cache.List(s.t.Context(), &pods, client.MatchingLabels{"elasticjob.dlrover/replica-type": role},
		client.UnsafeDisableDeepCopy)
	if err != nil {
		s.t.Fatal(err)
	}
	return pods.Items
}

// live are the pods of a role that have neither ended nor been deleted, by name.
func (s *stage) live(role string) map[string]corev1.Pod {
	s.t.Helper()
	live := map[string]corev1.Pod{}
	for _, pod := range s.pods(role) {
		if alive(&pod) {
			live[pod.Name] = pod
		}
	}
	return live
}

func alive(pod *corev1.Pod) bool {
	ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	return pod.DeletionTimestamp == nil && !ended
}

// whole says what is missing until a job has its master, and one live pod for each rank.
func (s *stage) whole(workers int) error {
	s.t.Helper()
	if masters := s.live(v1alpha1.ReplicaTypeMaster); len(masters) != 1 {
		return fmt.Errorf("%d masters", len(masters))
	}
	ranks := map[string]string{}
	live := s.live(v1alpha1.ReplicaTypeWorker)
	for name, pod := range live {
		rank := pod.Labels["elasticjob.dlrover/rank-index"]
		if other := ranks[rank]; other != "" {
			return fmt.Errorf("%s and %s both hold rank %s", name, other, rank)
		}
		ranks[rank] = name
	}
	if len(live) != workers {
		return fmt.Errorf("%d workers, want %d", len(live), workers)
	}
	return nil
}

// ready says what is missing until the status says that so many workers are.
func (s *stage) ready(name string, workers int32) func() error {
	return func() error {
		if ready := s.job(name).Status.Ready; ready != workers {
			return fmt.Errorf("%s: %d ready, want %d", name, ready, workers)
		}
		return nil
	}
}

// running says what is missing until the status says that all workers are ready.
func (s *stage) running(name string, workers int32) func() error {
	return func() error {
		status := s.job(name).Status
		if status.Ready != workers || status.Phase != v1alpha1.PhaseRunning {
			return fmt.Errorf("phase %s, %d ready, want %d", status.Phase, status.Ready, workers)
		}
		return s.whole(int(workers))
	}
}

// forceDelete removes pods from the API server at once, as a node controller does for a node that is gone.
func (s *stage) forceDelete(pods ...corev1.Pod) {
	s.t.Helper()
	for i := range pods {
		if err := cluster.client.Delete(context.Background(), &pods[i], client.GracePeriodSeconds(0)); err != nil {
			s.t.Error(err)
		}
	}
}

// simpleJob is a job of so many workers. Its master is one of its own that answers nobody: nobody runs it here, and
// pods that are too many need not wait for it.
func simpleJob(name string, workers int32) *v1alpha1.ElasticJob {
	worker := &v1alpha1.ReplicaSpec{Replicas: ptr.To(workers)}
	worker.Template.Spec.Containers = []corev1.Container{{
		Name: "main", Image: "training", Command: []string{"/bin/bash", "-c", "dlrover-run --nnodes=$NODE_NUM train.py"},
	}}
	job := &v1alpha1.ElasticJob{}
	job.Name = name
	job.Spec.DistributionStrategy = v1alpha1.StrategyAllreduce
	master := &v1alpha1.ReplicaSpec{}
	master.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "theirs"}}
	job.Spec.ReplicaSpecs = map[string]*v1alpha1.ReplicaSpec{
		v1alpha1.ReplicaTypeWorker: worker, v1alpha1.ReplicaTypeMaster: master,
	}
	return job
}
