package gang

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"phalanx/operator/api/v1alpha1"
)

// jobOf is a job of four workers; changes make it something else.
func jobOf(changes ...func(*v1alpha1.ElasticJob)) *v1alpha1.ElasticJob {
	worker := &v1alpha1.ReplicaSpec{Replicas: ptr.To[int32](4)}
	worker.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "training"}}
	job := &v1alpha1.ElasticJob{}
	job.Name, job.Namespace = "job", "ns"
	job.Spec.ReplicaSpecs = map[string]*v1alpha1.ReplicaSpec{v1alpha1.ReplicaTypeWorker: worker}
	for _, change := range changes {
		change(job)
	}
	return job
}

func worker(job *v1alpha1.ElasticJob) *v1alpha1.ReplicaSpec {
	return job.Spec.ReplicaSpecs[v1alpha1.ReplicaTypeWorker]
}

func scheduledBy(name string) func(*v1alpha1.ElasticJob) {
	return func(job *v1alpha1.ElasticJob) { worker(job).Template.Spec.SchedulerName = name }
}

func batch(name string) func(*v1alpha1.ElasticJob) {
	return func(job *v1alpha1.ElasticJob) { worker(job).BatchScheduler = name }
}

func annotated(pairs ...string) func(*v1alpha1.ElasticJob) {
	return func(job *v1alpha1.ElasticJob) {
		job.Annotations = map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			job.Annotations[pairs[i]] = pairs[i+1]
		}
	}
}

func marked(key, value string) func(*v1alpha1.ElasticJob) {
	return func(job *v1alpha1.ElasticJob) {
		worker(job).Template.Metadata.Annotations = map[string]string{key: value}
	}
}

func TestChoice(t *testing.T) {
	type changes = []func(*v1alpha1.ElasticJob)
	nobody := func(job *v1alpha1.ElasticJob) { worker(job).Replicas = ptr.To[int32](0) }
	cases := map[string]struct {
		changes changes
		want    string // its scheduler; empty: none
		least   int32
		err     string
	}{
		"nothing said":               {nil, "", 0, ""},
		"another scheduler":          {changes{scheduledBy("my-scheduler")}, "", 0, ""},
		"schedulerName volcano":      {changes{scheduledBy("volcano")}, "volcano", 4, ""},
		"schedulerName koordinator":  {changes{scheduledBy("koord-scheduler")}, "koordinator", 4, ""},
		"schedulerName coscheduling": {changes{scheduledBy("scheduler-plugins-scheduler")}, "coscheduling", 4, ""},
		"BatchScheduler":             {changes{batch("volcano")}, "volcano", 4, ""},
		"BatchScheduler default":     {changes{batch("default"), scheduledBy("volcano")}, "", 0, ""},
		"annotation":                 {changes{annotated(AnnotationScheduler, "coscheduling")}, "coscheduling", 4, ""},
		"annotation before all": {
			changes{annotated(AnnotationScheduler, "koordinator"), batch("volcano")}, "koordinator", 4, "",
		},
		"annotation none": {changes{annotated(AnnotationScheduler, "none"), scheduledBy("volcano")}, "", 0, ""},
		"a name of its own": {
			changes{annotated(AnnotationScheduler, "coscheduling"), scheduledBy("my-scheduler")}, "coscheduling", 4, "",
		},
		"no such scheduler": {
			changes{batch("yunikorn")}, "", 0,
			`worker.BatchScheduler: "yunikorn" is not known; expected volcano, coscheduling, koordinator or none`,
		},
		"two schedulers": {
			changes{batch("volcano"), scheduledBy("koord-scheduler")}, "", 0,
			"spec.replicaSpecs.worker.BatchScheduler is volcano, and the template's schedulerName koord-scheduler",
		},
		"the user's own gang": {
			changes{scheduledBy("koord-scheduler"), marked("gang.scheduling.koordinator.sh/name", "mine")}, "", 0, "",
		},
		"the user's own group": {
			changes{scheduledBy("volcano"), marked("scheduling.k8s.io/group-name", "mine")}, "", 0, "",
		},
		"a minimum":        {changes{scheduledBy("volcano"), annotated(AnnotationMin, "2")}, "volcano", 2, ""},
		"more than all":    {changes{scheduledBy("volcano"), annotated(AnnotationMin, "9")}, "volcano", 4, ""},
		"a wrong minimum":  {changes{scheduledBy("volcano"), annotated(AnnotationMin, "0")}, "", 0, `"0"; expected a number`},
		"a word":           {changes{scheduledBy("volcano"), annotated(AnnotationMin, "all")}, "", 0, `"all"; expected`},
		"nobody to gather": {changes{scheduledBy("volcano"), nobody}, "", 0, ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := Of(jobOf(tc.changes...))
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("got %v, want %q", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if (got == nil) != (tc.want == "") {
				t.Fatalf("got %v, want %q", got, tc.want)
			}
			if got != nil && (got.Scheduler.Name != tc.want || got.Min != tc.least) {
				t.Errorf("got %s of %d, want %s of %d", got.Scheduler.Name, got.Min, tc.want, tc.least)
			}
		})
	}
}

func TestDecorate(t *testing.T) {
	const group = "job-edljob-worker"
	cases := map[string]struct {
		labels, annotations map[string]string
		scheduler           string
	}{
		"volcano":      {nil, map[string]string{"scheduling.k8s.io/group-name": group}, "volcano"},
		"coscheduling": {map[string]string{"scheduling.x-k8s.io/pod-group": group}, nil, "scheduler-plugins-scheduler"},
		"koordinator":  {map[string]string{"pod-group.scheduling.sigs.k8s.io": group}, nil, "koord-scheduler"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			gang, err := Of(jobOf(batch(name)))
			if err != nil {
				t.Fatal(err)
			}
			var pod corev1.Pod
			gang.Decorate(&pod)
			if diff := cmp.Diff(tc.labels, pod.Labels) + cmp.Diff(tc.annotations, pod.Annotations); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if pod.Spec.SchedulerName != tc.scheduler {
				t.Errorf("schedulerName %q, want %q", pod.Spec.SchedulerName, tc.scheduler)
			}
			pod.Spec.SchedulerName = "mine"
			gang.Decorate(&pod)
			if pod.Spec.SchedulerName != "mine" {
				t.Errorf("schedulerName became %q", pod.Spec.SchedulerName)
			}
		})
	}
}

func TestPodGroups(t *testing.T) {
	gpus := func(job *v1alpha1.ElasticJob) {
		worker(job).Template.Spec.Containers[0].Resources.Limits = corev1.ResourceList{
			"metax-tech.com/gpu": resource.MustParse("8"), "cpu": resource.MustParse("500m"),
		}
		worker(job).Priority = "high"
		job.Annotations = map[string]string{AnnotationMin: "2", "scheduling.volcano.sh/queue-name": "research"}
	}
	cases := map[string]struct {
		kind        string
		spec        map[string]any
		annotations map[string]string
	}{
		"volcano": {"scheduling.volcano.sh/v1beta1", map[string]any{
			"minMember": int64(2), "priorityClassName": "high", "queue": "research",
			"minResources": map[string]any{"metax-tech.com/gpu": "16", "cpu": "1"},
		}, map[string]string{}},
		"coscheduling": {"scheduling.x-k8s.io/v1alpha1", map[string]any{
			"minMember": int64(2), "minResources": map[string]any{"metax-tech.com/gpu": "16", "cpu": "1"},
		}, map[string]string{}},
		"koordinator": {"scheduling.sigs.k8s.io/v1alpha1", map[string]any{"minMember": int64(2)}, map[string]string{
			"gang.scheduling.koordinator.sh/match-policy": "once-satisfied",
			"gang.scheduling.koordinator.sh/total-number": "4",
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			job := jobOf(batch(name), gpus)
			gang, err := Of(job)
			if err != nil {
				t.Fatal(err)
			}
			spec, annotations := gang.Wanted(job)
			if diff := cmp.Diff(tc.spec, spec) + cmp.Diff(tc.annotations, annotations); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			empty := gang.Empty("ns")
			if empty.GetAPIVersion() != tc.kind || empty.GetKind() != "PodGroup" || empty.GetName() != "job-edljob-worker" {
				t.Errorf("%s %s %s", empty.GetAPIVersion(), empty.GetKind(), empty.GetName())
			}
			if OfDefinition("podgroups."+strings.Split(tc.kind, "/")[0]) != gang.Scheduler {
				t.Errorf("%s is not found by its definition", name)
			}
		})
	}
}

func TestResources(t *testing.T) {
	asking := func(pairs ...string) corev1.Container {
		list := corev1.ResourceList{}
		for i := 0; i < len(pairs); i += 2 {
			list[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
		}
		return corev1.Container{Resources: corev1.ResourceRequirements{Requests: list}}
	}
	always := corev1.ContainerRestartPolicyAlways
	sidecar := asking("cpu", "1")
	sidecar.RestartPolicy = &always
	limited := asking("memory", "1Gi")
	limited.Resources.Limits = corev1.ResourceList{"memory": resource.MustParse("4Gi"), "gpu": resource.MustParse("1")}
	cases := map[string]struct {
		spec corev1.PodSpec
		want map[string]any
	}{
		"nothing": {corev1.PodSpec{Containers: []corev1.Container{{}}}, map[string]any{}},
		"two containers": {
			corev1.PodSpec{Containers: []corev1.Container{asking("cpu", "1"), asking("cpu", "500m")}},
			map[string]any{"cpu": "4500m"},
		},
		"requests before limits": {
			corev1.PodSpec{Containers: []corev1.Container{limited}}, map[string]any{"memory": "3Gi", "gpu": "3"},
		},
		"a greedy init container": {corev1.PodSpec{
			Containers: []corev1.Container{asking("cpu", "1")}, InitContainers: []corev1.Container{asking("cpu", "4")},
		}, map[string]any{"cpu": "12"}},
		"a sidecar beside both": {corev1.PodSpec{
			Containers: []corev1.Container{asking("cpu", "1")}, InitContainers: []corev1.Container{sidecar, asking("cpu", "4")},
		}, map[string]any{"cpu": "15"}},
		"overhead": {corev1.PodSpec{
			Containers: []corev1.Container{asking("cpu", "1")}, Overhead: corev1.ResourceList{"cpu": resource.MustParse("1")},
		}, map[string]any{"cpu": "6"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Resources(&tc.spec, 3)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
