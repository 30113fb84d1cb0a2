package elasticjob

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"phalanx/operator/api/v1alpha1"
	"phalanx/operator/internal/engine"
)

// jobOf is a job of two workers; changes make it something else.
func jobOf(changes ...func(*v1alpha1.ElasticJob)) *v1alpha1.ElasticJob {
	worker := &v1alpha1.ReplicaSpec{Replicas: ptr.To[int32](2)}
	worker.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "training"}}
	job := &v1alpha1.ElasticJob{}
	job.Name, job.Namespace, job.UID, job.Generation = "job", "ns", "uid", 1
	job.Spec.ReplicaSpecs = map[string]*v1alpha1.ReplicaSpec{v1alpha1.ReplicaTypeWorker: worker}
	for _, change := range changes {
		change(job)
	}
	return job
}

func worker(job *v1alpha1.ElasticJob) *v1alpha1.ReplicaSpec {
	return job.Spec.ReplicaSpecs[v1alpha1.ReplicaTypeWorker]
}

func TestWrongSpecsAreNamed(t *testing.T) {
	cases := map[string]struct {
		change func(*v1alpha1.ElasticJob)
		want   string
	}{
		"parameter servers": {
			func(j *v1alpha1.ElasticJob) { j.Spec.DistributionStrategy = "ParameterServerStrategy" },
			`spec.distributionStrategy: "ParameterServerStrategy" is not supported yet`,
		},
		"another role": {
			func(j *v1alpha1.ElasticJob) { j.Spec.ReplicaSpecs["evaluator"] = worker(j) },
			"spec.replicaSpecs.evaluator: not supported yet",
		},
		"no worker": {
			func(j *v1alpha1.ElasticJob) { j.Spec.ReplicaSpecs = nil },
			"spec.replicaSpecs.worker.template.spec.containers: empty",
		},
		"two budgets": {
			func(j *v1alpha1.ElasticJob) {
				worker(j).RestartCount, worker(j).RestartCounts = ptr.To[int32](1), ptr.To[int32](2)
			},
			"restartCount is 1 and restartCounts 2",
		},
		"a gang of nobody's": {
			func(j *v1alpha1.ElasticJob) { worker(j).BatchScheduler = "yunikorn" },
			`spec.replicaSpecs.worker.BatchScheduler: "yunikorn" is not known`,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := Desired(jobOf(tc.change), engine.DefaultPolicy())
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestAGangIsOfWorkersAlone(t *testing.T) {
	job := jobOf(func(j *v1alpha1.ElasticJob) { worker(j).BatchScheduler = "koordinator" })
	const mark = "pod-group.scheduling.sigs.k8s.io"
	if got := Pod(job, engine.Create{Role: v1alpha1.ReplicaTypeWorker}, options); got.Labels[mark] != "job-edljob-worker" {
		t.Errorf("a worker's labels: %v", got.Labels)
	}
	if got := Pod(job, engine.Create{Role: v1alpha1.ReplicaTypeMaster}, options); got.Labels[mark] != "" {
		t.Errorf("the master's labels: %v", got.Labels)
	}
}

func TestSecretsForTheMastersImage(t *testing.T) {
	with := options
	with.PullSecrets = []string{"one", "two"}
	want := []corev1.LocalObjectReference{{Name: "one"}, {Name: "two"}}
	got := Pod(jobOf(), engine.Create{Role: v1alpha1.ReplicaTypeMaster}, with).Spec.ImagePullSecrets
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := Pod(jobOf(), engine.Create{Role: v1alpha1.ReplicaTypeWorker}, with).Spec.ImagePullSecrets; got != nil {
		t.Errorf("a worker's: %v", got)
	}
}

// The id that a node gives its job counts nothing with Phalanx's own master, and where it runs can be said.
func TestWhereTheMasterRuns(t *testing.T) {
	with := options
	var err error
	with.MasterPod, err = ParseMasterPod(`{"nodeSelector": {"pool": "cpu"}, "imagePullPolicy": "Always",
		"tolerations": [{"key": "all", "operator": "Exists"}], "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}`)
	if err != nil {
		t.Fatal(err)
	}
	job := jobOf(func(j *v1alpha1.ElasticJob) {
		own := &v1alpha1.ReplicaSpec{}
		own.Template.Spec = corev1.PodSpec{
			NodeSelector: map[string]string{"pool": "own"}, Tolerations: []corev1.Toleration{{Key: "own"}},
			ImagePullSecrets: []corev1.LocalObjectReference{{Name: "key"}},
		}
		own.Template.Metadata.Labels = map[string]string{"team": "a"}
		j.Spec.ReplicaSpecs[v1alpha1.ReplicaTypeMaster] = own
	})
	for name, tc := range map[string]struct {
		job         *v1alpha1.ElasticJob
		pool        string
		tolerations int
	}{"by the operator": {jobOf(), "cpu", 1}, "by the job": {job, "own", 2}} {
		t.Run(name, func(t *testing.T) {
			pod := Pod(tc.job, engine.Create{Role: v1alpha1.ReplicaTypeMaster}, with)
			main := pod.Spec.Containers[0]
			if pod.Spec.NodeSelector["pool"] != tc.pool || len(pod.Spec.Tolerations) != tc.tolerations+2 {
				t.Errorf("%v %v", pod.Spec.NodeSelector, pod.Spec.Tolerations)
			}
			anyID := func(v corev1.EnvVar) bool { return v.Name == "PHALANX_ANY_JOB_ID" }
			if main.ImagePullPolicy != corev1.PullAlways || main.Resources.Limits.Cpu().String() != "1" ||
				!slices.ContainsFunc(main.Env, anyID) || main.Image != with.MasterImage {
				t.Errorf("%+v", main)
			}
		})
	}
	pod := Pod(job, engine.Create{Role: v1alpha1.ReplicaTypeMaster}, with)
	if pod.Labels["team"] != "a" || pod.Labels[labelRole] != v1alpha1.ReplicaTypeMaster {
		t.Errorf("%v", pod.Labels)
	}
	if len(pod.Spec.ImagePullSecrets) != 1 {
		t.Errorf("%v", pod.Spec.ImagePullSecrets)
	}
	if _, err := ParseMasterPod(`{"nodeselector": {}, "replicas": 2}`); err == nil {
		t.Error("replicas are nothing of a master's")
	}
}

// Its node's name server does not know the master's service.
func TestWorkersInTheirNodesNetworkFindTheMaster(t *testing.T) {
	for policy, want := range map[corev1.DNSPolicy]corev1.DNSPolicy{
		"": corev1.DNSClusterFirstWithHostNet, corev1.DNSNone: corev1.DNSNone,
	} {
		job := jobOf(func(j *v1alpha1.ElasticJob) {
			worker(j).Template.Spec.HostNetwork, worker(j).Template.Spec.DNSPolicy = true, policy
		})
		if got := Pod(job, engine.Create{Role: v1alpha1.ReplicaTypeWorker}, options).Spec.DNSPolicy; got != want {
			t.Errorf("%q: %q", policy, got)
		}
	}
}

// A master on a node that is lost is there for long, and not ready: nobody must be sent to it beside its successor.
// Phalanx's own has no probe, so that it is ready as soon as it runs.
func TestTheServiceLeadsToAMasterThatIsReady(t *testing.T) {
	if Service(jobOf()).Spec.PublishNotReadyAddresses {
		t.Error("it leads to masters that are not")
	}
	for _, container := range Pod(jobOf(), engine.Create{Role: v1alpha1.ReplicaTypeMaster}, options).Spec.Containers {
		if container.ReadinessProbe != nil {
			t.Errorf("%s has a probe", container.Name)
		}
	}
}

func TestRestartCount(t *testing.T) {
	cases := map[string]struct {
		one, other *int32
		want       int32
	}{
		"neither":       {nil, nil, 3},
		"restartCount":  {ptr.To[int32](0), nil, 0},
		"restartCounts": {nil, ptr.To[int32](7), 7},
		"both alike":    {ptr.To[int32](2), ptr.To[int32](2), 2},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			desired, err := Desired(jobOf(func(j *v1alpha1.ElasticJob) {
				worker(j).RestartCount, worker(j).RestartCounts = tc.one, tc.other
			}), engine.DefaultPolicy())
			if err != nil {
				t.Fatal(err)
			}
			if got := desired.Roles[1].Limits[engine.Application]; got != tc.want {
				t.Errorf("got %d, want %d", got, tc.want)
			}
		})
	}
}

// podAs is the first worker's pod with another status.
func podAs(status corev1.PodStatus) *corev1.Pod {
	pod := Pod(jobOf(), engine.Create{Role: v1alpha1.ReplicaTypeWorker}, options)
	pod.Status = status
	return pod
}

func terminated(code int32, reason string) []corev1.ContainerStatus {
	return []corev1.ContainerStatus{{
		Name:  "main",
		State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason}},
	}}
}

func TestEndsByClass(t *testing.T) {
	condition := func(reason string) []corev1.PodCondition {
		return []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: reason}}
	}
	cases := map[string]struct {
		status corev1.PodStatus
		want   engine.Class
	}{
		"exit code":  {corev1.PodStatus{ContainerStatuses: terminated(2, "Error")}, engine.Application},
		"OOM":        {corev1.PodStatus{ContainerStatuses: terminated(137, "OOMKilled")}, engine.OutOfMemory},
		"signal":     {corev1.PodStatus{ContainerStatuses: terminated(143, "Error")}, engine.Killed},
		"node check": {corev1.PodStatus{ContainerStatuses: terminated(202, "Error")}, engine.Hardware},
		"preempted": {
			corev1.PodStatus{ContainerStatuses: terminated(143, "Error"), Conditions: condition("PreemptionByScheduler")},
			engine.Disruption,
		},
		"evicted by the kubelet, before its containers have a status": {
			corev1.PodStatus{
				Reason: "Evicted", Message: "The node was low on resource: memory.",
				Conditions: condition("TerminationByKubelet"),
			},
			engine.Disruption,
		},
		"evicted for what it took itself": {
			corev1.PodStatus{
				Reason: "Evicted", Message: "Usage of EmptyDir volume exceeds the limit.",
				ContainerStatuses: terminated(137, "Error"),
			},
			engine.Application,
		},
		"node shut down": {
			corev1.PodStatus{Reason: "Terminated", Conditions: condition("TerminationByKubelet")}, engine.Disruption,
		},
		"refused by the kubelet": {corev1.PodStatus{Reason: "UnexpectedAdmissionError"}, engine.Disruption},
		"no CPU left":            {corev1.PodStatus{Reason: "OutOfcpu"}, engine.Disruption},
		"no GPU left":            {corev1.PodStatus{Reason: "OutOfnvidia.com/gpu"}, engine.Disruption},
		"nobody knows":           {corev1.PodStatus{}, engine.Killed},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			tc.status.Phase = corev1.PodFailed
			seen := Observe([]*corev1.Pod{podAs(tc.status)})
			if class, why := engine.Classify(&seen[0]); class != tc.want {
				t.Errorf("got %v (%s), want %v", class, why, tc.want)
			}
		})
	}
}

// Of a pod with other containers, which run on: the kubelet calls it Running.
func TestThePhaseHidesTheEndOfAProgram(t *testing.T) {
	asked := time.Unix(1000, 0)
	beside := corev1.ContainerStatus{
		Name: "proxy", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
	}
	for name, tc := range map[string]struct {
		code     int32
		at       time.Time // of its end; the deletion was asked for at `asked`, where it was
		deleted  bool
		state    engine.State
		lingers  bool
		endClass engine.Class
	}{
		"an error":                       {1, asked, false, engine.Failed, true, engine.Application},
		"a success":                      {0, asked, false, engine.Succeeded, true, engine.Application},
		"an error, and then deleted":     {1, asked.Add(-time.Second), true, engine.Failed, true, engine.Application},
		"an error of that same second":   {1, asked, true, engine.Failed, true, engine.Application},
		"a signal of that same second":   {143, asked, true, engine.Running, false, engine.Deleted},
		"an end by a deletion, later":    {1, asked.Add(time.Second), true, engine.Running, false, engine.Deleted},
		"a crash, and then it is killed": {139, asked.Add(-time.Minute), true, engine.Failed, true, engine.Application},
	} {
		t.Run(name, func(t *testing.T) {
			status := terminated(tc.code, "Error")
			status[0].State.Terminated.FinishedAt = metav1.NewTime(tc.at)
			pod := podAs(corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: status})
			if seen := Observe([]*corev1.Pod{pod})[0]; seen.State != engine.Running || seen.Lingers {
				t.Errorf("nothing else runs there: its phase is about to say so: %+v", seen)
			}
			pod.Status.ContainerStatuses = append(status, beside)
			if tc.deleted {
				grace := int64(30)
				goes := metav1.NewTime(asked.Add(30 * time.Second))
				pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &goes, &grace
			}
			seen := Observe([]*corev1.Pod{pod})[0]
			if seen.State != tc.state || seen.Lingers != tc.lingers || seen.Live() != (!tc.deleted && !tc.lingers) {
				t.Errorf("%+v", seen)
			}
			if class, why := engine.Classify(&seen); class != tc.endClass && tc.state != engine.Succeeded {
				t.Errorf("%v (%s)", class, why)
			}
		})
	}
}

// Of a pod whose containers have all ended: what counts is the end of its main one, and whose doing that was.
func TestThePhaseIsOfAllContainers(t *testing.T) {
	asked := time.Unix(1000, 0)
	failed, succeeded, well, badly := corev1.PodFailed, corev1.PodSucceeded, engine.Succeeded, engine.Failed
	before, later := asked.Add(-time.Second), asked.Add(time.Second)
	for name, tc := range map[string]struct {
		phase   corev1.PodPhase
		reason  string
		code    int32
		at      time.Time // of its end
		deleted bool      // asked for at `asked`
		want    engine.State
	}{
		"another container has failed":            {failed, "", 0, asked, false, well},
		"the program has failed":                  {failed, "", 1, asked, false, badly},
		"the kubelet has ended it, and it obeyed": {failed, "Evicted", 0, asked, false, badly},
		"a success":                                {succeeded, "", 0, asked, false, well},
		"a success, and then deleted":              {succeeded, "", 0, before, true, well},
		"it was deleted, and obeyed":               {succeeded, "", 0, later, true, badly},
		"it was deleted, and obeyed; its sidecar":  {failed, "", 0, later, true, badly},
		"another container has failed, and then..": {failed, "", 0, before, true, well},
	} {
		t.Run(name, func(t *testing.T) {
			status := terminated(tc.code, "Completed")
			status[0].State.Terminated.FinishedAt = metav1.NewTime(tc.at)
			pod := podAs(corev1.PodStatus{Phase: tc.phase, Reason: tc.reason, ContainerStatuses: status})
			if tc.deleted {
				grace := int64(30)
				goes := metav1.NewTime(asked.Add(30 * time.Second))
				pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &goes, &grace
			}
			seen := Observe([]*corev1.Pod{pod})[0]
			if seen.State != tc.want || seen.Lingers {
				t.Errorf("%+v", seen)
			}
			if class, why := engine.Classify(&seen); tc.deleted && tc.want == engine.Failed && class != engine.Deleted {
				t.Errorf("%v (%s)", class, why)
			}
		})
	}
}

// A runtime that comes up again after its machine was off knows no exit codes.
func TestAnEndThatNobodyHasSeen(t *testing.T) {
	for reason, want := range map[string]engine.Class{"Unknown": engine.Killed, "Error": engine.Application} {
		pod := podAs(corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: terminated(255, reason)})
		seen := Observe([]*corev1.Pod{pod})[0]
		if class, why := engine.Classify(&seen); class != want {
			t.Errorf("255 (%s): %v (%s)", reason, class, why)
		}
	}
}

// What a pod is kept off is written on it, and is still there in the cache.
func TestWhatAPodIsKeptOff(t *testing.T) {
	pod := Pod(jobOf(), engine.Create{Role: v1alpha1.ReplicaTypeWorker, Avoid: []string{"bad", "spot"}}, options)
	trimmed, err := Trim(pod)
	if err != nil {
		t.Fatal(err)
	}
	if seen := Observe([]*corev1.Pod{trimmed.(*corev1.Pod)})[0]; !slices.Equal(seen.Avoids, []string{"bad", "spot"}) {
		t.Errorf("%q", seen.Avoids)
	}
}

// How many pods in a row had not begun is written on the next one: an operator that begins goes on from there.
func TestHowManyHadNotBegun(t *testing.T) {
	pod := Pod(jobOf(), engine.Create{Role: v1alpha1.ReplicaTypeWorker, Unbegun: 4}, options)
	pod.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "OutOfcpu"}
	trimmed, err := Trim(pod)
	if err != nil {
		t.Fatal(err)
	}
	if seen := Observe([]*corev1.Pod{trimmed.(*corev1.Pod)})[0]; seen.Unbegun != 4 || seen.Began {
		t.Errorf("%d, begun: %v", seen.Unbegun, seen.Began)
	}
	pod.Status.ContainerStatuses = terminated(1, "Error")
	pod.Annotations[annotationUnbegun] = "-7"
	if seen := Observe([]*corev1.Pod{pod})[0]; seen.Unbegun != 0 || !seen.Began {
		t.Errorf("%d, begun: %v", seen.Unbegun, seen.Began)
	}
}

func TestPodsThatAreNobodys(t *testing.T) {
	stranger := podAs(corev1.PodStatus{})
	stranger.Labels[labelRank] = "-1"
	if got := Observe([]*corev1.Pod{stranger}); len(got) != 0 {
		t.Errorf("got %v", got)
	}
}

func TestAvoidedNodesAreInEachTerm(t *testing.T) {
	job := jobOf(func(j *v1alpha1.ElasticJob) {
		term := func(zone string) corev1.NodeSelectorTerm {
			return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{zone}}}}
		}
		worker(j).Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{term("a"), term("b")}}}}
	})
	pod := Pod(job, engine.Create{Role: v1alpha1.ReplicaTypeWorker, Avoid: []string{"x", "y"}}, options)
	terms := pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	for _, term := range terms {
		if len(term.MatchExpressions) != 1 || len(term.MatchFields) != 2 || term.MatchFields[1].Values[0] != "y" {
			t.Errorf("got %v", term)
		}
	}
	own := worker(job).Template.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if len(terms) != 2 || len(own[0].MatchFields) != 0 {
		t.Errorf("the template has changed: %v", own)
	}
}

func TestPriorityByRank(t *testing.T) {
	for priority, want := range map[string][]string{
		"": {"", "", ""}, "high": {"high", "high", "high"}, "0": {"low", "low", "low"}, "0.5": {"high", "high", "low"},
	} {
		for rank, class := range want {
			if got := priorityClass(priority, int32(rank), 3); got != class {
				t.Errorf("priority %q, rank %d of 3: got %q, want %q", priority, rank, got, class)
			}
		}
	}
}

// What a status says is what is read back from it, and an idle job's is the same each time.
func TestStatusKeepsTheMemory(t *testing.T) {
	job := jobOf()
	desired, err := Desired(job, engine.DefaultPolicy())
	if err != nil {
		t.Fatal(err)
	}
	memory := engine.Memory{
		Roles: map[string]engine.RoleMemory{"worker": {NextID: 9, Started: 2}},
		Ranks: map[engine.RankKey]engine.RankMemory{
			{Role: "worker", Rank: 1}: {Ends: engine.Counts{engine.Application: 2, engine.Disruption: 5}, LastID: 8}},
		Excluded: []engine.Exclusion{{Host: "bad", Until: time.Unix(2000, 0), Reason: "exit code 201"}},
		Outcome:  &engine.Outcome{Success: false, Reason: "RestartsExhausted", Message: "rank 1"},
	}
	at := Situation{Memory: memory, Desired: desired, Now: time.Unix(1000, 0)}
	job.Status = Status(job, at)
	if diff := cmp.Diff(memory, Memory(&job.Status)); diff != "" {
		t.Errorf("memory (-want +got):\n%s", diff)
	}
	at.Now = at.Now.Add(time.Hour)
	if diff := cmp.Diff(job.Status, Status(job, at)); diff != "" {
		t.Errorf("an hour later (-before +after):\n%s", diff)
	}
	if job.Status.Phase != v1alpha1.PhaseFailed || job.Status.Restarts != 7 {
		t.Errorf("phase %s, %d restarts", job.Status.Phase, job.Status.Restarts)
	}
}

// A job without pods trains nothing, whatever its master has said last.
func TestTheWorldOfAJobThatDoesNotTrain(t *testing.T) {
	job := jobOf()
	desired, err := Desired(job, engine.DefaultPolicy())
	if err != nil {
		t.Fatal(err)
	}
	at := Situation{Desired: desired, Told: &Told{World: 8, Step: ptr.To[int64](40)}, Now: time.Unix(1000, 0)}
	job.Status = Status(job, at)
	at.Told = nil
	if world := Status(job, at).World; world == nil || *world != 8 {
		t.Errorf("while the master is not heard: %v", world)
	}
	ended := at
	ended.Memory.Outcome = &engine.Outcome{Success: true}
	at.Desired.Suspended = true
	for name, at := range map[string]Situation{"suspended": at, "ended": ended} {
		if status := Status(job, at); status.World != nil || *status.Step != 40 {
			t.Errorf("%s: %v ranks", name, *status.World)
		}
	}
}

func TestPlans(t *testing.T) {
	plan := func(change func(*v1alpha1.ScalePlan)) *v1alpha1.ScalePlan {
		plan := &v1alpha1.ScalePlan{Spec: v1alpha1.ScalePlanSpec{
			OwnerJob:             "job",
			ReplicaResourceSpecs: map[string]v1alpha1.ReplicaResourceSpec{"worker": {Replicas: ptr.To[int32](6)}},
		}}
		change(plan)
		return plan
	}
	scaling := func(p *v1alpha1.ScalePlan) {
		p.Status.Phase, p.Status.JobGeneration = v1alpha1.PlanScaling, 2
		p.OwnerReferences = []metav1.OwnerReference{Owner(jobOf())}
	}
	owned := func(p *v1alpha1.ScalePlan) {
		scaling(p)
		p.Status = v1alpha1.ScalePlanStatus{Phase: v1alpha1.PlanPending}
	}
	anew := jobOf(func(j *v1alpha1.ElasticJob) { j.UID = "another" })
	sized := func(replicas, ready int32, generation int64) *v1alpha1.ElasticJob {
		return jobOf(func(j *v1alpha1.ElasticJob) {
			worker(j).Replicas, j.Generation = &replicas, generation
			j.Status.Replicas, j.Status.Ready, j.Status.ObservedGeneration = ready, ready, generation
		})
	}
	cases := map[string]struct {
		plan *v1alpha1.ScalePlan
		job  *v1alpha1.ElasticJob
		want string
		size int32
	}{
		"a wish is written":         {plan(func(*v1alpha1.ScalePlan) {}), sized(2, 2, 1), "Scaling", 6},
		"no job yet":                {plan(func(*v1alpha1.ScalePlan) {}), nil, "Pending", 0},
		"an old picture of the job": {plan(scaling), sized(2, 2, 1), "Scaling", 0},
		"pods are missing":          {plan(scaling), sized(6, 5, 2), "Scaling", 0},
		"all are there":             {plan(scaling), sized(6, 6, 2), "Succeeded", 0},
		"its job is gone":           {plan(scaling), nil, "Failed", 0},
		"its job goes": {plan(scaling), jobOf(func(j *v1alpha1.ElasticJob) {
			j.DeletionTimestamp = &metav1.Time{}
		}), "Failed", 0},
		"a job applied anew is another":                  {plan(scaling), anew, "Failed", 0},
		"also where the plan had only just been written": {plan(owned), anew, "Failed", 0},
		"a plan that was cut short is written again":     {plan(owned), sized(2, 2, 1), "Scaling", 6},
		"somebody wanted other sizes":                    {plan(scaling), sized(4, 4, 3), "Failed", 0},
		"a job that has ended": {plan(func(*v1alpha1.ScalePlan) {}), jobOf(func(j *v1alpha1.ElasticJob) {
			j.Status.CompletionTime = &metav1.Time{}
		}), "Failed", 0},
		"single pods": {plan(func(p *v1alpha1.ScalePlan) {
			p.Spec.MigratePods = []v1alpha1.PodMeta{{Name: "x"}}
		}), sized(2, 2, 1), "Failed", 0},
		"resources": {plan(func(p *v1alpha1.ScalePlan) {
			p.Spec.ReplicaResourceSpecs = map[string]v1alpha1.ReplicaResourceSpec{"worker": {
				Replicas: ptr.To[int32](2), Resource: corev1.ResourceList{"cpu": {}}}}
		}), sized(2, 2, 1), "Failed", 0},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			step := NextStep(tc.plan, tc.job)
			if step.Status.Phase != tc.want || ptr.Deref(step.Replicas, 0) != tc.size {
				t.Errorf("got %s, size %d: %s", step.Status.Phase, ptr.Deref(step.Replicas, 0), step.Status.Message)
			}
		})
	}
}
