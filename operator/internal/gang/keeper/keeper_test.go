package keeper

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"phalanx/operator/api/v1alpha1"
	"phalanx/operator/internal/gang"
)

func jobOf(scheduler string, replicas int32) *v1alpha1.ElasticJob {
	worker := &v1alpha1.ReplicaSpec{Replicas: &replicas, BatchScheduler: scheduler}
	worker.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "training"}}
	job := &v1alpha1.ElasticJob{}
	job.Name, job.Namespace, job.UID = "job", "ns", "uid"
	job.Spec.ReplicaSpecs = map[string]*v1alpha1.ReplicaSpec{v1alpha1.ReplicaTypeWorker: worker}
	return job
}

// site is a small API server, and how often it was written to.
type site struct {
	t      *testing.T
	keeper *Keeper
	writes int
	fails  error // of each write
	reads  error
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{t: t}
	server := fake.NewClientBuilder().Build()
	groups := []string{"scheduling.volcano.sh/v1beta1", "scheduling.x-k8s.io/v1alpha1", "scheduling.sigs.k8s.io/v1alpha1"}
	server.Scheme().AddKnownTypeWithName(definitionKind, &unstructured.Unstructured{})
	for _, group := range groups {
		version, err := schema.ParseGroupVersion(group)
		if err != nil {
			t.Fatal(err)
		}
		server.Scheme().AddKnownTypeWithName(version.WithKind("PodGroup"), &unstructured.Unstructured{})
		server.Scheme().AddKnownTypeWithName(version.WithKind("PodGroupList"), &unstructured.UnstructuredList{})
	}
	s.keeper = &Keeper{events: events.NewFakeRecorder(10), now: time.Now, client: interceptor.NewClient(server,
		interceptor.Funcs{
			Get: func(ctx context.Context, to client.WithWatch, key client.ObjectKey, object client.Object,
				options ...client.GetOption) error {
				if s.reads != nil && object.GetObjectKind().GroupVersionKind().Kind == "PodGroup" {
					return s.reads
				}
				return to.Get(ctx, key, object, options...)
			},
			Create: func(ctx context.Context, to client.WithWatch, object client.Object, o ...client.CreateOption) error {
				s.writes++
				if s.fails != nil {
					return s.fails
				}
				return to.Create(ctx, object, o...)
			},
			Patch: func(ctx context.Context, to client.WithWatch, object client.Object, patch client.Patch,
				o ...client.PatchOption) error {
				s.writes++
				return to.Patch(ctx, object, patch, o...)
			},
		})}
	return s
}

// define makes a definition of volcano's PodGroups in a version.
func (s *site) define(version, established string) {
	s.t.Helper()
	definition := &unstructured.Unstructured{Object: map[string]any{
		"spec":   map[string]any{"versions": []any{map[string]any{"name": version, "served": true}}},
		"status": map[string]any{"conditions": []any{map[string]any{"type": "Established", "status": established}}},
	}}
	definition.SetGroupVersionKind(definitionKind)
	definition.SetName("podgroups.scheduling.volcano.sh")
	if err := s.keeper.client.Create(s.t.Context(), definition); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) ensure(job *v1alpha1.ElasticJob) (Result, error) {
	s.t.Helper()
	wanted, err := gang.Of(job)
	if err != nil || wanted == nil {
		s.t.Fatalf("no gang: %v", err)
	}
	return s.keeper.Ensure(s.t.Context(), job, wanted)
}

// belongs makes the PodGroup of that name: of another job, or of nobody.
func (s *site) belongs(job types.UID) {
	s.t.Helper()
	other := jobOf("volcano", 1)
	other.UID = job
	if _, err := s.ensure(other); err != nil {
		s.t.Fatal(err)
	}
	if group := s.group(other); job == "" {
		group.SetOwnerReferences(nil)
		if err := s.keeper.client.Update(s.t.Context(), group); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *site) group(job *v1alpha1.ElasticJob) *unstructured.Unstructured {
	s.t.Helper()
	wanted, err := gang.Of(job)
	if err != nil {
		s.t.Fatal(err)
	}
	group := wanted.Empty("ns")
	if err := s.keeper.client.Get(s.t.Context(), client.ObjectKeyFromObject(group), group); err != nil {
		s.t.Fatal(err)
	}
	return group
}

func minMember(t *testing.T, group *unstructured.Unstructured) int64 {
	t.Helper()
	least, _, err := unstructured.NestedInt64(group.Object, "spec", "minMember")
	if err != nil {
		t.Fatal(err)
	}
	return least
}

func TestAPodGroupFollowsItsJob(t *testing.T) {
	for _, scheduler := range []string{"volcano", "coscheduling", "koordinator"} {
		t.Run(scheduler, func(t *testing.T) {
			s := newSite(t)
			job := jobOf(scheduler, 4)
			for range 3 {
				if got, err := s.ensure(job); err != nil || !got.There {
					t.Fatalf("%+v, %v", got, err)
				}
			}
			if s.writes != 1 {
				t.Errorf("%d writes for one state", s.writes)
			}
			group := s.group(job)
			if got := minMember(t, group); got != 4 || v1alpha1.OwnerUID(group) != "uid" {
				t.Errorf("minMember %d, owner %q", got, v1alpha1.OwnerUID(group))
			}
			job.Spec.ReplicaSpecs["worker"].Replicas = ptr.To[int32](2)
			if got, err := s.ensure(job); err != nil || !strings.Contains(got.Message, "2 of 2 workers") {
				t.Fatalf("%+v, %v", got, err)
			}
			if got := minMember(t, s.group(job)); got != 2 || s.writes != 2 {
				t.Errorf("minMember %d behind %d writes", got, s.writes)
			}
		})
	}
}

// What the scheduler has written beside is left to it.
func TestWhatOthersHaveWrittenStays(t *testing.T) {
	s := newSite(t)
	job := jobOf("volcano", 4)
	if _, err := s.ensure(job); err != nil {
		t.Fatal(err)
	}
	group := s.group(job)
	group.Object["status"] = map[string]any{"phase": "Running"}
	group.SetAnnotations(map[string]string{"theirs": "yes"})
	if err := unstructured.SetNestedField(group.Object, "default", "spec", "queue"); err != nil {
		t.Fatal(err)
	}
	if err := s.keeper.client.Update(t.Context(), group); err != nil {
		t.Fatal(err)
	}
	job.Spec.ReplicaSpecs["worker"].Replicas = ptr.To[int32](8)
	if _, err := s.ensure(job); err != nil {
		t.Fatal(err)
	}
	after := s.group(job)
	want := map[string]any{"minMember": int64(8), "queue": "default"}
	if diff := cmp.Diff(want, after.Object["spec"]); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
	if after.GetAnnotations()["theirs"] != "yes" || after.Object["status"] == nil {
		t.Errorf("annotations %v, status %v", after.GetAnnotations(), after.Object["status"])
	}
}

func TestWhatStandsInTheWay(t *testing.T) {
	kind := schema.GroupKind{Group: "scheduling.volcano.sh", Kind: "PodGroup"}
	served := apierrors.NewGenericServerResponse(404, "get", schema.GroupResource{Resource: "podgroups"}, "x", "404", 0,
		true)
	cases := map[string]struct {
		change  func(*site)
		reason  string // empty: an error, which is tried again
		message string
	}{
		"no definition": {
			func(s *site) { s.reads = &meta.NoKindMatchError{GroupKind: kind} }, "NoPodGroups",
			"there is no custom resource definition podgroups.scheduling.volcano.sh; install volcano, or choose another",
		},
		"an older definition": {
			func(s *site) {
				s.reads = &meta.NoKindMatchError{GroupKind: kind}
				s.define("v1alpha2", "True")
			}, "NoPodGroups", "does not serve the version v1beta1; install volcano in a version that has it",
		},
		"a definition that is not taken": {
			func(s *site) {
				s.reads = &meta.NoKindMatchError{GroupKind: kind}
				s.define("v1beta1", "False")
			}, "NoPodGroups", "does not serve the version v1beta1",
		},
		"a definition of just now": {
			func(s *site) {
				s.reads = &meta.NoKindMatchError{GroupKind: kind}
				s.define("v1beta1", "True")
			}, "", "not served yet",
		},
		"a definition that is gone": {func(s *site) { s.reads = served }, "NoPodGroups", "podgroups.scheduling.volcano.sh"},
		"refused": {
			func(s *site) { s.fails = apierrors.NewForbidden(schema.GroupResource{}, "x", nil) }, "PodGroupRefused", "forbidden",
		},
		"a server that is busy": {func(s *site) { s.fails = apierrors.NewTooManyRequests("later", 1) }, "", "later"},
		"of a job before": {
			func(s *site) { s.belongs("before") }, "PodGroupOfPredecessor",
			"the PodGroup job-edljob-worker is of a job of this name that is gone",
		},
		"of another": {
			func(s *site) { s.belongs("") }, "PodGroupOfAnother",
			"the PodGroup job-edljob-worker is there and does not belong to this job",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			tc.change(s)
			got, err := s.ensure(jobOf("volcano", 4))
			if tc.reason == "" {
				if err == nil || !strings.Contains(err.Error(), tc.message) {
					t.Errorf("got %v, want %q", err, tc.message)
				}
				return
			}
			if err != nil || got.There || got.Reason != tc.reason || !strings.Contains(got.Message, tc.message) {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}

// Nobody is told that a PodGroup is deleted: who waits for that comes again, and makes it.
func TestAPodGroupOfAnotherIsWaitedFor(t *testing.T) {
	for owner, after := range map[types.UID]time.Duration{"before": time.Second, "": 30 * time.Second} {
		s := newSite(t)
		if err := v1alpha1.AddToScheme(s.keeper.client.Scheme()); err != nil {
			t.Fatal(err)
		}
		job := jobOf("volcano", 4)
		s.belongs(owner)
		if err := s.keeper.client.Create(t.Context(), job); err != nil {
			t.Fatal(err)
		}
		request := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(job)}
		if got, err := s.keeper.Reconcile(t.Context(), request); err != nil || got.RequeueAfter != after {
			t.Errorf("it comes again after %v, %v; want %v", got.RequeueAfter, err, after)
		}
		if err := s.keeper.client.Delete(t.Context(), s.group(job)); err != nil {
			t.Fatal(err)
		}
		if got, err := s.keeper.Reconcile(t.Context(), request); err != nil || got.RequeueAfter != 0 {
			t.Errorf("it comes again after %v, %v", got.RequeueAfter, err)
		}
		if got := v1alpha1.OwnerUID(s.group(job)); got != job.UID {
			t.Errorf("the PodGroup is of %q", got)
		}
	}
}
