package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"phalanx/operator/api/v1alpha1"
	"phalanx/operator/internal/elasticjob"
	"phalanx/operator/internal/engine"
	"phalanx/operator/internal/gang"
	"phalanx/operator/internal/manager"
)

var errLost = errors.New("the connection was lost")

// cluster is a small API server, and a cache that shows its pods as they were when sync was called: what a real cache
// does for moments, this one does until the test says so. test/apiserver has the real ones.
type cluster struct {
	t          *testing.T
	server     client.WithWatch
	reconciler *JobReconciler
	shown      []corev1.Pod
	uids       int
	statuses   int  // how many have been written
	podLists   int  // how many the API server was asked for, each of whole pods
	losing     bool // creations are carried out, and their answers lost
	refusing   bool // no pod is taken
	deaf       bool // no list of pods is answered
	mu         sync.Mutex
	refused    int
	hidesNodes bool         // the cache does
	hidden     string       // a service that the cache does not show: it has no job's label
	shownNode  *corev1.Node // as the cache has it, whatever has become of it
	onDelete   func()
	masters    fakeMasters
}

// cachedPods is a client whose lists of pods are the cluster's shown.
type cachedPods struct {
	client.Client
	cluster *cluster
}

func (c cachedPods) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if pods, ok := list.(*corev1.PodList); ok {
		pods.Items = c.cluster.shown
		return nil
	}
	return c.Client.List(ctx, list, options...)
}

func (c cachedPods) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	node, ok := o.(*corev1.Node)
	if ok && c.cluster.hidesNodes {
		return apierrors.NewNotFound(corev1.Resource("nodes"), key.Name)
	}
	if _, ok := o.(*corev1.Service); ok && c.cluster.hidden == key.Name {
		return apierrors.NewNotFound(corev1.Resource("services"), key.Name)
	}
	if ok && c.cluster.shownNode != nil {
		c.cluster.shownNode.DeepCopyInto(node)
		return nil
	}
	return c.Client.Get(ctx, key, o, options...)
}

func newCluster(t *testing.T, workers int32) *cluster {
	t.Helper()
	scheme, err := manager.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t}
	seen := &nodes{notices: elasticjob.NoticeTaints()}
	c.server = interceptor.NewClient(
		fake.NewClientBuilder().WithScheme(scheme).
			WithStatusSubresource(&v1alpha1.ElasticJob{}, &v1alpha1.ScalePlan{}).
			WithIndex(&corev1.Node{}, noticeIndex, seen.noticed).Build(),
		interceptor.Funcs{Create: c.create, SubResourceUpdate: c.updateStatus, Delete: c.delete, List: c.list})
	worker := &v1alpha1.ReplicaSpec{Replicas: &workers}
	worker.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "training"}}
	job := &v1alpha1.ElasticJob{}
	job.Name, job.Namespace, job.Generation = "job", "ns", 1
	job.Spec.ReplicaSpecs = map[string]*v1alpha1.ReplicaSpec{v1alpha1.ReplicaTypeWorker: worker}
	if err := c.server.Create(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	c.newProcess()
	return c
}

func (c *cluster) create(ctx context.Context, to client.WithWatch, object client.Object,
	o ...client.CreateOption) error {
	c.mu.Lock()
	_, isPod := object.(*corev1.Pod)
	if isPod && c.refusing {
		c.refused++
		c.mu.Unlock()
		time.Sleep(time.Second) // of the bubble: all that are to be under way are
		return apierrors.NewForbidden(corev1.Resource("pods"), object.GetName(), errors.New("exceeded quota"))
	}
	defer c.mu.Unlock()
	c.uids++
	object.SetUID(types.UID(fmt.Sprintf("uid-%d", c.uids)))
	if err := to.Create(ctx, object, o...); err != nil || !c.losing {
		return err
	}
	if isPod {
		return errLost
	}
	return nil
}

func (c *cluster) delete(ctx context.Context, to client.WithWatch, object client.Object,
	o ...client.DeleteOption) error {
	if c.onDelete != nil {
		c.onDelete()
	}
	return to.Delete(ctx, object, o...)
}

func (c *cluster) list(ctx context.Context, to client.WithWatch, list client.ObjectList, o ...client.ListOption) error {
	if _, ok := list.(*corev1.PodList); ok {
		c.podLists++
		if c.deaf {
			return errLost
		}
	}
	return to.List(ctx, list, o...)
}

func (c *cluster) jobUID() types.UID {
	c.t.Helper()
	var job v1alpha1.ElasticJob
	if err := c.server.Get(c.t.Context(), types.NamespacedName{Namespace: "ns", Name: "job"}, &job); err != nil {
		c.t.Fatal(err)
	}
	return job.UID
}

func (c *cluster) status() v1alpha1.ElasticJobStatus {
	c.t.Helper()
	var job v1alpha1.ElasticJob
	if err := c.server.Get(c.t.Context(), types.NamespacedName{Namespace: "ns", Name: "job"}, &job); err != nil {
		c.t.Fatal(err)
	}
	return job.Status
}

func (c *cluster) phase() string { return c.status().Phase }

func (c *cluster) updateStatus(ctx context.Context, to client.Client, resource string, object client.Object,
	options ...client.SubResourceUpdateOption) error {
	if _, ok := object.(*v1alpha1.ElasticJob); ok {
		c.statuses++
	}
	return to.SubResource(resource).Update(ctx, object, options...)
}

// newProcess is an operator that was just started: it has no ledger.
func (c *cluster) newProcess() {
	c.reconciler = &JobReconciler{
		client: cachedPods{c.server, c}, server: c.server, events: events.NewFakeRecorder(100), ledger: newLedger(),
		masters: &c.masters, first: &firstLook{server: c.server},
		nodes:  &nodes{cache: cachedPods{c.server, c}, server: c.server, notices: elasticjob.NoticeTaints()},
		policy: engine.DefaultPolicy(), options: elasticjob.Options{}, now: time.Now,
	}
}

func (c *cluster) reconcile() (reconcile.Result, error) {
	c.t.Helper()
	name := types.NamespacedName{Namespace: "ns", Name: "job"}
	return c.reconciler.Reconcile(c.t.Context(), reconcile.Request{NamespacedName: name})
}

func (c *cluster) mustReconcile() reconcile.Result {
	c.t.Helper()
	result, err := c.reconcile()
	if err != nil {
		c.t.Fatal(err)
	}
	return result
}

func (c *cluster) pods() map[string]corev1.Pod {
	c.t.Helper()
	var list corev1.PodList
	if err := c.server.List(c.t.Context(), &list); err != nil {
		c.t.Fatal(err)
	}
	pods := map[string]corev1.Pod{}
	for _, pod := range list.Items {
		pods[pod.Name] = pod
	}
	return pods
}

// sync brings the cache up to date, and tells the ledger as the events of pods do.
func (c *cluster) sync() {
	c.t.Helper()
	now := c.pods()
	for i := range c.shown {
		if _, there := now[c.shown[i].Name]; !there {
			c.reconciler.ledger.saw(v1alpha1.OwnerUID(&c.shown[i]), &c.shown[i], true)
		}
	}
	c.shown = nil
	for _, pod := range now {
		c.shown = append(c.shown, pod)
		c.reconciler.ledger.saw(v1alpha1.OwnerUID(&pod), &pod, false)
	}
}

func (c *cluster) addNode(name string) *corev1.Node {
	c.t.Helper()
	node := &corev1.Node{}
	node.Name = name
	if err := c.server.Create(c.t.Context(), node); err != nil && !apierrors.IsAlreadyExists(err) {
		c.t.Fatal(err)
	}
	return node
}

func (c *cluster) remove(name string) {
	c.t.Helper()
	pod := c.pods()[name]
	if err := c.server.Delete(c.t.Context(), &pod); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) want(names ...string) {
	c.t.Helper()
	pods := c.pods()
	for _, name := range names {
		if _, there := pods[name]; !there {
			c.t.Errorf("%s is missing", name)
		}
	}
	if len(pods) != len(names) {
		c.t.Errorf("there are %v, want %v", slices.Sorted(maps.Keys(pods)), names)
	}
}

const masterName = "elasticjob-job-dlrover-master-0"

func TestAnOldCacheMakesNoPodTwice(t *testing.T) {
	c := newCluster(t, 2)
	for range 3 {
		c.mustReconcile() // the cache shows no pod at all
	}
	c.want(masterName, "job-edljob-worker-0", "job-edljob-worker-1")
}

func TestALostPodIsReplacedOnce(t *testing.T) {
	c := newCluster(t, 2)
	c.mustReconcile()
	c.sync()
	c.remove("job-edljob-worker-1")
	c.sync()
	for range 3 {
		c.mustReconcile() // the cache does not show the new one
	}
	c.want(masterName, "job-edljob-worker-0", "job-edljob-worker-2")
	if got := c.pods()["job-edljob-worker-2"].Annotations[elasticjob.AnnotationEnds]; got != "Deleted=1" {
		t.Errorf("ends: %q", got)
	}
}

func TestANewProcessAsksTheServer(t *testing.T) {
	c := newCluster(t, 2)
	c.mustReconcile()
	c.newProcess() // with a cache from before the pods were made
	c.mustReconcile()
	c.want(masterName, "job-edljob-worker-0", "job-edljob-worker-1")
}

// What the first look has found is not forgotten while nobody knows the pods themselves.
func TestANewProcessAsksTheServerUntilItAnswers(t *testing.T) {
	c := newCluster(t, 2)
	c.mustReconcile()
	c.newProcess() // with a cache from before the pods were made
	c.deaf = true
	for range 2 {
		if _, err := c.reconcile(); !errors.Is(err, errLost) {
			t.Fatalf("got %v", err)
		}
	}
	c.deaf = false
	c.mustReconcile()
	c.want(masterName, "job-edljob-worker-0", "job-edljob-worker-1")
}

// A quota that is used up refuses one request of a round, not one for each pod.
func TestARefusalSlowsTheNextRound(t *testing.T) { synctest.Test(t, refuse) }

func refuse(t *testing.T) {
	c := newCluster(t, 100)
	c.refusing = true
	for range 2 {
		if _, err := c.reconcile(); err == nil {
			t.Fatal("nobody says that pods are refused")
		}
	}
	if c.refused != 2 {
		t.Errorf("%d requests were refused in two rounds", c.refused)
	}
	c.refusing = false
	c.mustReconcile()
	if !c.reconciler.ledger.trusts(c.jobUID()) {
		t.Error("the round that succeeded counts for nothing")
	}
	c.sync()
	c.refusing = true
	for rank := range 60 {
		c.remove(fmt.Sprintf("job-edljob-worker-%d", rank))
	}
	c.sync()
	for round, most := range []int{maxInFlight, 1} {
		c.refused = 0
		if _, err := c.reconcile(); err == nil {
			t.Fatal("nobody says that pods are refused")
		}
		if c.refused < 1 || c.refused > most {
			t.Errorf("round %d: %d requests were refused, of %d at most", round, c.refused, most)
		}
	}
	if told := len(c.masters.facts); told > 0 {
		t.Errorf("the job's master is told of %d new pods, and there are none", told)
	}
	c.refusing = false
	c.mustReconcile()
	if told := len(c.masters.facts); told != 60 {
		t.Errorf("the job's master is told of %d new pods of 60", told)
	}
}

// A first look that finds nothing the cache lacks is all that a new process asks.
func TestANewProcessWithAFreshCacheListsNoJob(t *testing.T) {
	c := newCluster(t, 2)
	c.mustReconcile()
	c.sync()
	c.newProcess()
	before := c.podLists
	c.mustReconcile()
	if c.podLists != before {
		t.Errorf("%d lists of pods", c.podLists-before)
	}
	c.want(masterName, "job-edljob-worker-0", "job-edljob-worker-1")
}

// Hundreds of pods that start are not hundreds of statuses; the last count is written all the same.
func TestCountsAreWrittenTogether(t *testing.T) {
	c := newCluster(t, 4)
	now := time.Unix(1000, 0)
	c.reconciler.now = func() time.Time { return now }
	c.mustReconcile()
	c.sync()
	ready := func(rank int) reconcile.Result {
		pod := c.pods()[fmt.Sprintf("job-edljob-worker-%d", rank)]
		pod.Status.Phase = corev1.PodRunning
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		if err := c.server.Status().Update(t.Context(), &pod); err != nil {
			t.Fatal(err)
		}
		c.sync()
		return c.mustReconcile()
	}
	ready(0) // the phase is another
	before := c.statuses
	ready(1)
	result := ready(2)
	if c.statuses != before || result.RequeueAfter <= 0 || result.RequeueAfter > countsEvery {
		t.Errorf("%d statuses, again after %v", c.statuses-before, result.RequeueAfter)
	}
	now = now.Add(result.RequeueAfter)
	c.mustReconcile()
	var job v1alpha1.ElasticJob
	if err := c.server.Get(t.Context(), types.NamespacedName{Namespace: "ns", Name: "job"}, &job); err != nil {
		t.Fatal(err)
	}
	if c.statuses != before+1 || job.Status.Ready != 3 {
		t.Errorf("%d statuses, %d ready", c.statuses-before, job.Status.Ready)
	}
}

func TestARequestWhoseEndNobodyKnows(t *testing.T) {
	c := newCluster(t, 2)
	c.losing = true
	if _, err := c.reconcile(); !errors.Is(err, errLost) {
		t.Fatalf("got %v", err)
	}
	for range 3 {
		_, _ = c.reconcile() // each finds one pod more than it knew of
	}
	c.losing = false
	c.mustReconcile()
	c.want(masterName, "job-edljob-worker-0", "job-edljob-worker-1")
}

func TestAnIdleJobsStatusIsNotWritten(t *testing.T) {
	c := newCluster(t, 2)
	c.mustReconcile()
	c.sync()
	c.mustReconcile()
	before := c.statuses
	for range 5 {
		c.mustReconcile()
	}
	if c.statuses != before {
		t.Errorf("%d statuses were written for nothing", c.statuses-before)
	}
}

// The end of a job is written before its pods are deleted.
func TestAFinishIsRememberedFirst(t *testing.T) {
	c := newCluster(t, 1)
	c.mustReconcile()
	pod := c.pods()[masterName]
	pod.Status.Phase = corev1.PodSucceeded
	if err := c.server.Status().Update(t.Context(), &pod); err != nil {
		t.Fatal(err)
	}
	c.sync()
	var atDeletion string
	c.onDelete = func() { atDeletion = c.phase() }
	c.mustReconcile()
	c.want(masterName)
	if atDeletion != v1alpha1.PhaseSucceeded {
		t.Errorf("a pod was deleted in phase %q", atDeletion)
	}
}

// Pods may pull for long, and then one pull fails once. That they cannot start counts from there.
func TestAPodThatCannotStartIsWaitedForFromThenOn(t *testing.T) {
	c := newCluster(t, 1)
	now := time.Unix(10_000, 0)
	c.reconciler.now = func() time.Time { return now }
	c.mustReconcile()
	waits := func(reason string) reconcile.Result {
		t.Helper()
		pod := c.pods()["job-edljob-worker-0"]
		began := metav1.NewTime(time.Unix(1000, 0))
		pod.Status = corev1.PodStatus{
			Phase: corev1.PodPending, StartTime: &began, ContainerStatuses: []corev1.ContainerStatus{{
				Name: "main", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}},
			}},
		}
		if err := c.server.Status().Update(t.Context(), &pod); err != nil {
			t.Fatal(err)
		}
		c.sync()
		return c.mustReconcile()
	}
	for _, reason := range []string{"ContainerCreating", "ErrImagePull", "ImagePullBackOff", "ContainerCreating"} {
		waits(reason)
		now = now.Add(9 * time.Minute)
		if phase := c.phase(); phase != v1alpha1.PhasePending {
			t.Fatalf("phase %s at %s", phase, reason)
		}
		if reason == "ErrImagePull" {
			now = now.Add(-5 * time.Minute)
		}
	}
	if result := waits("ErrImagePull"); result.RequeueAfter != 10*time.Minute {
		t.Errorf("again after %v", result.RequeueAfter)
	}
	now = now.Add(10 * time.Minute)
	waits("ImagePullBackOff")
	if phase := c.phase(); phase != v1alpha1.PhaseFailed {
		t.Errorf("phase %s", phase)
	}
}

// A new node may have its pod in the cache before the cache has the node.
func TestANodeIsNoMoreWhenTheServerSaysSo(t *testing.T) {
	c := newCluster(t, 1)
	c.mustReconcile()
	node := c.addNode("new")
	pod := c.pods()["job-edljob-worker-0"]
	pod.Spec.NodeName, pod.Status.Phase = "new", corev1.PodRunning
	if err := c.server.Update(t.Context(), &pod); err != nil {
		t.Fatal(err)
	}
	c.sync()
	c.hidesNodes = true
	c.mustReconcile()
	c.want(masterName, "job-edljob-worker-0")
	if err := c.server.Delete(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	c.mustReconcile()
	c.want(masterName, "job-edljob-worker-1")
	if got := c.pods()["job-edljob-worker-1"].Annotations[elasticjob.AnnotationEnds]; got != "Disruption=1" {
		t.Errorf("ends: %q", got)
	}
}

// Pods and nodes are heard of one by one: a pod that has just been bound to a node in service again is in the cache
// before the node is.
func TestANodeIsInServiceAgainWhenTheServerSaysSo(t *testing.T) {
	for name, change := range map[string]func(*cluster, *corev1.Node){
		"the taint out-of-service is gone": func(c *cluster, node *corev1.Node) {
			c.shownNode = node.DeepCopy()
			c.shownNode.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}
		},
		"a node of this name is back": func(c *cluster, node *corev1.Node) {
			c.hidesNodes = true
			if err := c.server.Delete(t.Context(), node); err != nil {
				t.Fatal(err)
			}
			if _, err := c.reconciler.nodes.look(t.Context(), node.Name); err != nil {
				t.Fatal(err)
			}
			c.addNode(node.Name)
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 1)
			c.mustReconcile()
			pod := c.pods()["job-edljob-worker-0"]
			pod.Spec.NodeName, pod.Status.Phase = "node", corev1.PodRunning
			if err := c.server.Update(t.Context(), &pod); err != nil {
				t.Fatal(err)
			}
			c.sync()
			change(c, c.addNode("node"))
			c.mustReconcile()
			c.want(masterName, "job-edljob-worker-0")
		})
	}
}

func TestAWrongSpecIsSaidSo(t *testing.T) {
	c := newCluster(t, 1)
	var job v1alpha1.ElasticJob
	name := types.NamespacedName{Namespace: "ns", Name: "job"}
	if err := c.server.Get(t.Context(), name, &job); err != nil {
		t.Fatal(err)
	}
	job.Spec.DistributionStrategy = "ParameterServerStrategy"
	if err := c.server.Update(t.Context(), &job); err != nil {
		t.Fatal(err)
	}
	c.mustReconcile()
	c.want()
	if err := c.server.Get(t.Context(), name, &job); err != nil {
		t.Fatal(err)
	}
	if len(job.Status.Conditions) != 1 || job.Status.Conditions[0].Reason != "InvalidSpec" {
		t.Errorf("conditions: %v", job.Status.Conditions)
	}
}

func (c *cluster) degraded() string {
	c.t.Helper()
	status := c.status()
	found := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionDegraded)
	if found == nil || found.Status != metav1.ConditionTrue {
		return ""
	}
	return found.Reason
}

func TestADeletedServiceIsMadeAnew(t *testing.T) {
	c := newCluster(t, 1)
	c.mustReconcile()
	c.sync()
	var job v1alpha1.ElasticJob
	if err := c.server.Get(t.Context(), types.NamespacedName{Namespace: "ns", Name: "job"}, &job); err != nil {
		t.Fatal(err)
	}
	service := elasticjob.Service(&job)
	if err := c.server.Delete(t.Context(), service); err != nil {
		t.Fatal(err)
	}
	c.mustReconcile()
	if err := c.server.Get(t.Context(), client.ObjectKeyFromObject(service), service); err != nil {
		t.Error(err)
	}
}

// The service of a job of before, or of nobody, leads elsewhere, or will be gone.
func TestAServiceOfAnotherIsNotTaken(t *testing.T) {
	for name, owner := range map[string]types.UID{"a job of before": "old", "nobody": ""} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 1)
			of := &v1alpha1.ElasticJob{}
			of.Name, of.Namespace, of.UID = "job", "ns", owner
			service := elasticjob.Service(of)
			if owner == "" {
				service.OwnerReferences = nil
				c.hidden = service.Name
			}
			if err := c.server.Create(t.Context(), service); err != nil {
				t.Fatal(err)
			}
			if _, err := c.reconcile(); err == nil {
				t.Error("nobody says that the service is another's")
			}
			c.want()
			if got := c.degraded(); got != "ServiceOfAnother" {
				t.Errorf("degraded: %q", got)
			}
			if err := c.server.Delete(t.Context(), service); err != nil {
				t.Fatal(err)
			}
			c.mustReconcile()
			c.want(masterName, "job-edljob-worker-0")
			if got := c.degraded(); got != "" {
				t.Errorf("degraded: %q", got)
			}
		})
	}
}

func TestWhatIsHeardOfAJob(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*v1alpha1.ElasticJob)
		want   bool
	}{
		"a spec": {func(j *v1alpha1.ElasticJob) { j.Generation++ }, true},
		"an annotation": {func(j *v1alpha1.ElasticJob) {
			j.Annotations = map[string]string{gang.AnnotationScheduler: "none"}
		}, true},
		"a status": {func(j *v1alpha1.ElasticJob) { j.Status.Ready, j.ResourceVersion = 3, "8" }, false},
	} {
		after := &v1alpha1.ElasticJob{}
		tc.change(after)
		if got := jobNews().Update(event.UpdateEvent{ObjectOld: &v1alpha1.ElasticJob{}, ObjectNew: after}); got != tc.want {
			t.Errorf("%s is heard: %v", name, got)
		}
	}
}

func TestAPlanResizesItsJob(t *testing.T) {
	c := newCluster(t, 1)
	plan := &v1alpha1.ScalePlan{Spec: v1alpha1.ScalePlanSpec{
		OwnerJob:             "job",
		ReplicaResourceSpecs: map[string]v1alpha1.ReplicaResourceSpec{"worker": {Replicas: ptr.To[int32](3)}},
	}}
	plan.Name, plan.Namespace = "plan", "ns"
	if err := c.server.Create(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	plans := &PlanReconciler{client: c.server, now: time.Now}
	request := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(plan)}
	if _, err := plans.Reconcile(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	if err := c.server.Get(t.Context(), request.NamespacedName, plan); err != nil {
		t.Fatal(err)
	}
	if plan.Status.Phase != v1alpha1.PlanScaling || len(plan.OwnerReferences) != 1 {
		t.Errorf("%s, owners %v", plan.Status.Phase, plan.OwnerReferences)
	}
	c.mustReconcile()
	c.want(masterName, "job-edljob-worker-0", "job-edljob-worker-1", "job-edljob-worker-2")
}
