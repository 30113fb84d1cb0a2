package controller

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"phalanx/operator/api/v1alpha1"
	"phalanx/operator/internal/elasticjob"
	"phalanx/operator/internal/link"
	"phalanx/operator/internal/link/platformpb"
)

// fakeMasters says what a test has it say. test/link has real ones.
type fakeMasters struct {
	opened map[types.UID]link.Master
	view   *platformpb.JobView // nil: the master is not there
	wish   *platformpb.PlatformView
	facts  []*platformpb.PlatformFact
}

func (m *fakeMasters) Knows(job types.UID) bool   { _, known := m.opened[job]; return known }
func (m *fakeMasters) Token(job types.UID) string { return m.opened[job].Token }
func (m *fakeMasters) Open(job types.UID, _ types.NamespacedName, master link.Master) {
	if m.opened == nil {
		m.opened = map[types.UID]link.Master{}
	}
	m.opened[job] = master
}
func (m *fakeMasters) Close(job types.UID)                             { delete(m.opened, job) }
func (m *fakeMasters) Tell(_ types.UID, wish *platformpb.PlatformView) { m.wish = wish }
func (m *fakeMasters) Report(_ types.UID, fact *platformpb.PlatformFact) {
	m.facts = append(m.facts, fact)
}
func (m *fakeMasters) View(types.UID) (view *platformpb.JobView, current bool) {
	return m.view, m.view != nil
}

// runAll gives all worker pods a node and an address, and has them run.
func (c *cluster) runAll() {
	c.t.Helper()
	for name, pod := range c.pods() {
		if !strings.Contains(name, "-worker-") || pod.Status.PodIP != "" {
			continue
		}
		number := name[strings.LastIndex(name, "-")+1:]
		pod.Spec.NodeName = "node-" + number
		c.addNode(pod.Spec.NodeName)
		if err := c.server.Update(c.t.Context(), &pod); err != nil {
			c.t.Fatal(err)
		}
		pod.Status.Phase, pod.Status.PodIP = corev1.PodRunning, "10.0.0."+number
		if err := c.server.Status().Update(c.t.Context(), &pod); err != nil {
			c.t.Fatal(err)
		}
	}
	c.sync()
}

func (c *cluster) resize(workers int32) {
	c.t.Helper()
	var job v1alpha1.ElasticJob
	if err := c.server.Get(c.t.Context(), types.NamespacedName{Namespace: "ns", Name: "job"}, &job); err != nil {
		c.t.Fatal(err)
	}
	job.Spec.ReplicaSpecs[v1alpha1.ReplicaTypeWorker].Replicas = &workers
	job.Generation++
	if err := c.server.Update(c.t.Context(), &job); err != nil {
		c.t.Fatal(err)
	}
}

// Pods, master and operator know each other by one token, which a second operator finds again.
func TestAJobsToken(t *testing.T) {
	c := newCluster(t, 1)
	c.mustReconcile()
	var secret corev1.Secret
	name := types.NamespacedName{Namespace: "ns", Name: "elasticjob-job-token"}
	if err := c.server.Get(t.Context(), name, &secret); err != nil {
		t.Fatal(err)
	}
	token := string(secret.Data[elasticjob.TokenKey])
	if len(token) != 32 || len(secret.OwnerReferences) != 1 {
		t.Errorf("token %q, owners %v", token, secret.OwnerReferences)
	}
	for name, pod := range c.pods() {
		var found *corev1.SecretKeySelector
		for _, variable := range pod.Spec.Containers[0].Env {
			if variable.Name == "PHALANX_TOKEN" {
				found = variable.ValueFrom.SecretKeyRef
			}
		}
		if found == nil || found.Name != secret.Name || found.Key != elasticjob.TokenKey {
			t.Errorf("%s has %v", name, found)
		}
	}
	c.masters = fakeMasters{}
	c.newProcess()
	c.mustReconcile()
	for _, master := range c.masters.opened {
		if master.Token != token || master.Address != "elasticjob-job-dlrover-master.ns.svc:50001" {
			t.Errorf("the second process dials %+v", master)
		}
	}
}

func (c *cluster) secret() *corev1.Secret {
	c.t.Helper()
	secret := &corev1.Secret{}
	name := types.NamespacedName{Namespace: "ns", Name: "elasticjob-job-token"}
	if err := c.server.Get(c.t.Context(), name, secret); err != nil {
		c.t.Fatal(err)
	}
	return secret
}

// loseSecret deletes it, and returns what it was.
func (c *cluster) loseSecret() *corev1.Secret {
	c.t.Helper()
	secret := c.secret()
	if err := c.server.Delete(c.t.Context(), secret); err != nil {
		c.t.Fatal(err)
	}
	return secret
}

// A secret that is not the job's is said so. A job that has not begun waits for another one; a job that has gets pods
// for those that it loses, and its master is not dialled.
func TestAWrongSecretIsSaidSo(t *testing.T) {
	change := func(how func(*corev1.Secret)) func(*cluster) {
		return func(c *cluster) {
			secret := c.secret()
			how(secret)
			if err := c.server.Update(t.Context(), secret); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, breaks := range map[string]func(*cluster){
		"nobody owns it": change(func(s *corev1.Secret) { s.OwnerReferences = nil }),
		"it is empty":    change(func(s *corev1.Secret) { s.Data = nil }),
		"it is gone":     func(c *cluster) { c.loseSecret() },
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 2)
			c.mustReconcile()
			c.sync()
			secret := c.secret()
			breaks(c)
			c.masters = fakeMasters{}
			c.newProcess()
			c.remove("job-edljob-worker-1")
			c.sync()
			if _, err := c.reconcile(); err == nil {
				t.Error("nobody will look again")
			}
			c.want(masterName, "job-edljob-worker-0", "job-edljob-worker-2")
			if got := c.degraded(); got != "TokenUnusable" || len(c.masters.opened) != 0 {
				t.Errorf("degraded: %q, dialled: %v", got, c.masters.opened)
			}
			c.putBack(secret)
			c.mustReconcile()
			if got := c.degraded(); got != "" || len(c.masters.opened) != 1 {
				t.Errorf("degraded: %q, dialled: %v", got, c.masters.opened)
			}
		})
	}
}

// Pods that a job is given when somebody has deleted its secret would wait for it for ever.
func TestASecretThatIsDeletedUnderAJobIsPutBack(t *testing.T) {
	c := newCluster(t, 2)
	c.mustReconcile()
	c.sync()
	before := c.loseSecret()
	c.remove("job-edljob-worker-1")
	c.sync()
	c.mustReconcile()
	c.want(masterName, "job-edljob-worker-0", "job-edljob-worker-2")
	after := c.secret()
	if token := string(after.Data[elasticjob.TokenKey]); token != string(before.Data[elasticjob.TokenKey]) {
		t.Errorf("the token was %q, and is %q", before.Data[elasticjob.TokenKey], token)
	}
	if len(after.OwnerReferences) != 1 {
		t.Errorf("owners: %v", after.OwnerReferences)
	}
}

// A pod that was there already and waits for the secret gets it as well.
func TestASecretThatAPodWaitsForIsPutBack(t *testing.T) {
	c := newCluster(t, 2)
	c.mustReconcile()
	c.sync()
	before := c.loseSecret()
	pod := c.pods()["job-edljob-worker-1"]
	pod.Status.Phase = corev1.PodPending
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: "CreateContainerConfigError", Message: "secret not found"},
	}}}
	if err := c.server.Status().Update(t.Context(), &pod); err != nil {
		t.Fatal(err)
	}
	c.sync()
	c.mustReconcile()
	if token := string(c.secret().Data[elasticjob.TokenKey]); token != string(before.Data[elasticjob.TokenKey]) {
		t.Errorf("the token is %q", token)
	}
}

// What DLRover would heed and has no effect here is said once.
func TestAnnotationsWithoutEffectAreAnEvent(t *testing.T) {
	c := newCluster(t, 1)
	var job v1alpha1.ElasticJob
	if err := c.server.Get(t.Context(), types.NamespacedName{Namespace: "ns", Name: "job"}, &job); err != nil {
		t.Fatal(err)
	}
	job.Annotations = map[string]string{"pending_timeout": "600"}
	if err := c.server.Update(t.Context(), &job); err != nil {
		t.Fatal(err)
	}
	recorder := c.reconciler.events.(*events.FakeRecorder)
	c.mustReconcile()
	c.sync()
	c.mustReconcile()
	if len(recorder.Events) != 1 {
		t.Fatalf("%d events", len(recorder.Events))
	}
	if event := <-recorder.Events; !strings.Contains(event, `pending_timeout="600" has no effect`) {
		t.Errorf("the event is %q", event)
	}
}

func (c *cluster) putBack(secret *corev1.Secret) {
	c.t.Helper()
	if err := client.IgnoreNotFound(c.server.Delete(c.t.Context(), secret)); err != nil {
		c.t.Fatal(err)
	}
	secret.ResourceVersion = ""
	if err := c.server.Create(c.t.Context(), secret); err != nil {
		c.t.Fatal(err)
	}
}

func TestAJobThatHasNotBegunWaitsForItsSecret(t *testing.T) {
	c := newCluster(t, 1)
	of := &v1alpha1.ElasticJob{}
	of.Name, of.Namespace, of.UID = "job", "ns", "old"
	secret := elasticjob.Token(of, "another's")
	if err := c.server.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	if _, err := c.reconcile(); err == nil {
		t.Error("nobody will look again")
	}
	c.want()
	if got := c.degraded(); got != "TokenUnusable" {
		t.Errorf("degraded: %q", got)
	}
	if err := c.server.Delete(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	c.mustReconcile()
	c.want(masterName, "job-edljob-worker-0")
}

// Suspended, a job has no pods that know a token: when it goes on it may get a new one.
func TestAResumedJobGetsATokenAnew(t *testing.T) {
	c := newCluster(t, 1)
	suspend := func(is bool) {
		var job v1alpha1.ElasticJob
		if err := c.server.Get(t.Context(), types.NamespacedName{Namespace: "ns", Name: "job"}, &job); err != nil {
			t.Fatal(err)
		}
		job.Spec.Suspend = &is
		job.Generation++
		if err := c.server.Update(t.Context(), &job); err != nil {
			t.Fatal(err)
		}
		c.mustReconcile()
		c.sync()
	}
	c.mustReconcile()
	c.sync()
	suspend(true)
	if len(c.masters.opened) != 0 {
		t.Errorf("dialled: %v", c.masters.opened)
	}
	c.loseSecret()
	suspend(false)
	if token := string(c.secret().Data[elasticjob.TokenKey]); c.masters.opened[c.jobUID()].Token != token {
		t.Errorf("the master is dialled with %v, and not with %s", c.masters.opened, token)
	}
}

// A job that has ended has no master: nobody dials it, also not an operator that begins later.
func TestAJobThatHasEndedIsNotDialled(t *testing.T) {
	c := newCluster(t, 1)
	c.mustReconcile()
	if len(c.masters.opened) != 1 {
		t.Fatalf("dialled: %v", c.masters.opened)
	}
	pod := c.pods()[masterName]
	pod.Status.Phase = corev1.PodSucceeded
	if err := c.server.Status().Update(t.Context(), &pod); err != nil {
		t.Fatal(err)
	}
	c.sync()
	for range 3 { // the second look is that of the events of deleted pods
		c.mustReconcile()
		c.sync()
		if len(c.masters.opened) != 0 {
			t.Fatalf("dialled: %v", c.masters.opened)
		}
		c.newProcess()
	}
}

// A job that is deleted and applied anew between two looks has a master of its own.
func TestTheMasterOfAJobOfBeforeIsNotDialled(t *testing.T) {
	c := newCluster(t, 1)
	c.mustReconcile()
	old := c.jobUID()
	c.makeAnew()
	c.mustReconcile()
	if _, dialled := c.masters.opened[old]; dialled || len(c.masters.opened) != 1 {
		t.Errorf("dialled: %v", c.masters.opened)
	}
}

// makeAnew deletes the job with all that is its own, and applies it again.
func (c *cluster) makeAnew() {
	c.t.Helper()
	job := &v1alpha1.ElasticJob{}
	if err := c.server.Get(c.t.Context(), types.NamespacedName{Namespace: "ns", Name: "job"}, job); err != nil {
		c.t.Fatal(err)
	}
	own := []client.Object{job, elasticjob.Service(job), elasticjob.Token(job, "")}
	for _, pod := range c.pods() {
		own = append(own, &pod)
	}
	for _, object := range own {
		if err := c.server.Delete(c.t.Context(), object); err != nil {
			c.t.Fatal(err)
		}
	}
	c.sync()
	anew := &v1alpha1.ElasticJob{}
	anew.Name, anew.Namespace, anew.Generation, anew.Spec = job.Name, job.Namespace, 1, job.Spec
	if err := c.server.Create(c.t.Context(), anew); err != nil {
		c.t.Fatal(err)
	}
}

func TestAJobMadeSmallerIsDrained(t *testing.T) {
	c := newCluster(t, 3)
	c.mustReconcile()
	c.runAll()
	c.masters.view = &platformpb.JobView{WorldSize: 3, Step: ptr.To[int64](40)}
	c.mustReconcile()
	if status := c.status(); status.World == nil || *status.World != 3 || *status.Step != 40 {
		t.Errorf("status: world %v, step %v", status.World, status.Step)
	}
	c.resize(2)
	c.mustReconcile()
	c.mustReconcile()
	c.want(masterName, "job-edljob-worker-0", "job-edljob-worker-1", "job-edljob-worker-2")
	wish := c.masters.wish
	if wish.GetWantedNodes() != 2 || len(wish.GetDepartures()) != 1 || wish.GetDepartures()[0].GetAddress() != "10.0.0.2" {
		t.Fatalf("the master is told %v", wish)
	}
	c.masters.view = &platformpb.JobView{WorldSize: 2, Released: []string{"10.0.0.2"}}
	c.mustReconcile()
	c.want(masterName, "job-edljob-worker-0", "job-edljob-worker-1")
}

// An operator that begins has not heard the master yet, and a stream may break: the pod that is to go trains on until
// the master does without it, or has had its time.
func TestADrainOutlivesTheOperatorAndTheStream(t *testing.T) {
	for name, tc := range map[string]struct {
		breaks func(*cluster)
		rest   time.Duration
	}{
		"an operator that begins": {(*cluster).newProcess, time.Minute},
		"a stream that breaks":    {func(*cluster) {}, 40 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 2)
			now := time.Unix(10_000, 0)
			clock := func() time.Time { return now }
			c.reconciler.now = clock
			c.mustReconcile()
			c.runAll()
			c.masters.view = &platformpb.JobView{WorldSize: 2}
			c.resize(1)
			c.mustReconcile()
			now = now.Add(20 * time.Second)
			c.masters.view = nil
			tc.breaks(c)
			c.reconciler.now = clock
			result := c.mustReconcile()
			c.want(masterName, "job-edljob-worker-0", "job-edljob-worker-1")
			if result.RequeueAfter != tc.rest {
				t.Errorf("again after %v", result.RequeueAfter)
			}
			now = now.Add(result.RequeueAfter)
			c.mustReconcile()
			c.want(masterName, "job-edljob-worker-0")
		})
	}
}

// Of a master that a job brings nobody knows that it answers, until it has.
func TestAForeignMasterIsNotWaitedFor(t *testing.T) {
	for name, tc := range map[string]struct {
		view *platformpb.JobView
		want []string
	}{
		"it has never answered": {nil, []string{masterName, "job-edljob-worker-0"}},
		"it has": {
			&platformpb.JobView{WorldSize: 2}, []string{masterName, "job-edljob-worker-0", "job-edljob-worker-1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 2)
			var job v1alpha1.ElasticJob
			if err := c.server.Get(t.Context(), types.NamespacedName{Namespace: "ns", Name: "job"}, &job); err != nil {
				t.Fatal(err)
			}
			own := &v1alpha1.ReplicaSpec{}
			own.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "theirs"}}
			job.Spec.ReplicaSpecs[v1alpha1.ReplicaTypeMaster] = own
			if err := c.server.Update(t.Context(), &job); err != nil {
				t.Fatal(err)
			}
			c.mustReconcile()
			c.runAll()
			c.masters.view = tc.view
			c.mustReconcile()
			c.masters.view = nil
			c.newProcess()
			c.resize(1)
			c.mustReconcile()
			c.want(tc.want...)
		})
	}
}

// A node that the job's check has found bad is avoided, also by an operator that begins behind the deletion.
func TestANodeThatFailedItsCheckIsAvoided(t *testing.T) {
	c := newCluster(t, 2)
	c.mustReconcile()
	c.runAll()
	c.masters.view = &platformpb.JobView{Unfit: []*platformpb.UnfitNode{
		{Hostname: "job-edljob-worker-1", Address: "192.168.7.1", Reason: "sector 7 is gone"}, // it has --local-addr
		{Hostname: "one-before", Address: "10.0.0.0", Reason: "it had the address of another"},
	}}
	var atDeletion []v1alpha1.ExcludedNode
	c.onDelete = func() { atDeletion = c.status().ExcludedNodes }
	c.mustReconcile()
	c.want(masterName, "job-edljob-worker-0", "job-edljob-worker-2")
	if len(atDeletion) != 1 || atDeletion[0].Name != "node-1" || !strings.Contains(atDeletion[0].Reason, "sector 7") {
		t.Errorf("when the pod was deleted, %v were excluded", atDeletion)
	}
	terms := c.pods()["job-edljob-worker-2"].Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if got := fmt.Sprint(terms.NodeSelectorTerms[0].MatchFields); !strings.Contains(got, "node-1") {
		t.Errorf("the new pod avoids %s", got)
	}
	if len(c.masters.facts) != 1 || !strings.Contains(c.masters.facts[0].GetSentence(), "sector 7 is gone") {
		t.Errorf("the master is told %v", c.masters.facts)
	}
}

// The master does without the pods of a node that is about to go, and then they go; no new one comes there.
func TestANodeThatIsAboutToGo(t *testing.T) {
	c := newCluster(t, 2)
	c.mustReconcile()
	c.runAll()
	c.masters.view = &platformpb.JobView{WorldSize: 2}
	var node corev1.Node
	if err := c.server.Get(t.Context(), types.NamespacedName{Name: "node-1"}, &node); err != nil {
		t.Fatal(err)
	}
	node.Spec.Taints = []corev1.Taint{{Key: "karpenter.sh/disrupted", Effect: corev1.TaintEffectNoSchedule}}
	if err := c.server.Update(t.Context(), &node); err != nil {
		t.Fatal(err)
	}
	c.mustReconcile()
	c.mustReconcile()
	c.want(masterName, "job-edljob-worker-0", "job-edljob-worker-1")
	got := c.masters.wish.GetDepartures()
	if len(got) != 1 || got[0].GetAddress() != "10.0.0.1" || got[0].GetLeftMs() < 50_000 {
		t.Fatalf("the master is told of %v", got)
	}
	c.masters.view = &platformpb.JobView{WorldSize: 1, Released: []string{"10.0.0.1"}}
	c.mustReconcile()
	if got := c.masters.wish.GetDepartures(); len(got) != 1 || got[0].GetAddress() != "10.0.0.1" {
		t.Errorf("as the pod is deleted, the master is told of %v: it would begin a round with that pod once more", got)
	}
	c.mustReconcile()
	c.want(masterName, "job-edljob-worker-0", "job-edljob-worker-2")
	terms := c.pods()["job-edljob-worker-2"].Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if got := fmt.Sprint(terms.NodeSelectorTerms[0].MatchFields); !strings.Contains(got, "node-1") {
		t.Errorf("the new pod avoids %s", got)
	}
	if ends := c.status().Ranks[0].Ends; ends["Disruption"]+ends["Deleted"] != 1 {
		t.Errorf("the ranks' ends are %v", c.status().Ranks)
	}
}

// A master whose node does not answer may work on, and hold the link: it hears of the one that has taken its place.
func TestAMasterHearsOfTheNewestThatIsReady(t *testing.T) {
	c := newCluster(t, 1)
	c.mustReconcile()
	c.runAll()
	ready := func(name string) {
		t.Helper()
		pod := c.pods()[name]
		pod.Status.Phase = corev1.PodRunning
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		if err := c.server.Status().Update(t.Context(), &pod); err != nil {
			t.Fatal(err)
		}
		c.sync()
		c.mustReconcile()
	}
	ready(masterName)
	if epoch := c.masters.wish.MasterEpoch; epoch == nil || *epoch != 0 {
		t.Fatalf("the master is told of epoch %v", epoch)
	}
	gone := c.pods()[masterName]
	gone.Finalizers = []string{"test/stays"} // as a pod whose kubelet does not answer
	if err := c.server.Update(t.Context(), &gone); err != nil {
		t.Fatal(err)
	}
	if err := c.server.Delete(t.Context(), &gone); err != nil {
		t.Fatal(err)
	}
	c.sync()
	c.mustReconcile()
	if epoch := c.masters.wish.MasterEpoch; epoch != nil {
		t.Fatalf("the successor is not ready, and the master is told of epoch %d", *epoch)
	}
	ready(strings.TrimSuffix(masterName, "0") + "1")
	if epoch := c.masters.wish.MasterEpoch; epoch == nil || *epoch != 1 {
		t.Errorf("the master is told of epoch %v", epoch)
	}
}

func TestAPodThatIsPreemptedIsToldToTheMaster(t *testing.T) {
	c := newCluster(t, 2)
	c.mustReconcile()
	c.runAll()
	pod := c.pods()["job-edljob-worker-0"]
	pod.Status.Conditions = []corev1.PodCondition{{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "PreemptionByScheduler",
	}}
	if err := c.server.Status().Update(t.Context(), &pod); err != nil {
		t.Fatal(err)
	}
	c.sync()
	c.mustReconcile()
	got := c.masters.wish.GetDepartures()
	if len(got) != 1 || got[0].GetName() != pod.Name || got[0].GetReason() != "PreemptionByScheduler" {
		t.Errorf("the master is told of %v", got)
	}
}
