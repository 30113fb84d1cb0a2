// Package keeper makes the PodGroups of jobs whose workers are a gang, and keeps them as their jobs are.
package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"phalanx/operator/api/v1alpha1"
	"phalanx/operator/internal/elasticjob"
	"phalanx/operator/internal/gang"
)

// Keeper keeps PodGroups.
type Keeper struct {
	client client.Client // reads PodGroups from the API server, and all else from the cache
	events events.EventRecorder
	now    func() time.Time
}

var _ reconcile.Reconciler = (*Keeper)(nil)

// definitionKind: of a definition only the metadata is kept in the cache, and this is read from the API server.
var definitionKind = schema.GroupVersionKind{
	Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition",
}

// +kubebuilder:rbac:groups=scheduling.volcano.sh;scheduling.x-k8s.io;scheduling.sigs.k8s.io,resources=podgroups,verbs=get;create;patch
// +kubebuilder:rbac:groups=apiextensions.k8s.io,resources=customresourcedefinitions,verbs=get;list;watch
// +kubebuilder:rbac:groups=elastic.iml.github.io,resources=elasticjobs,verbs=get;list;watch
// +kubebuilder:rbac:groups=elastic.iml.github.io,resources=elasticjobs/finalizers,verbs=update
// +kubebuilder:rbac:groups=elastic.iml.github.io,resources=elasticjobs/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconcile brings the PodGroup of one job up to date, and its condition.
func (k *Keeper) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	var job v1alpha1.ElasticJob
	if err := k.client.Get(ctx, request.NamespacedName, &job); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if job.DeletionTimestamp != nil || job.Status.CompletionTime != nil {
		return reconcile.Result{}, nil // the PodGroup goes with the job
	}
	wanted, err := gang.Of(&job)
	if err != nil || wanted == nil {
		return reconcile.Result{}, k.say(ctx, &job, nil) // whoever reads the spec says what is wrong with it
	}
	result, err := k.Ensure(ctx, &job, wanted)
	if errors.Is(err, errNotServedYet) {
		return reconcile.Result{RequeueAfter: servedAfter}, nil
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: again[result.Reason]}, k.say(ctx, &job, &result)
}

const (
	ofPredecessor = "PodGroupOfPredecessor"
	ofAnother     = "PodGroupOfAnother"
)

// again is when to come again, by the reason: nobody is told that a PodGroup is deleted. They are not watched, as there
// may be none of a kind.
var again = map[string]time.Duration{ofPredecessor: time.Second, ofAnother: 30 * time.Second}

// errNotServedYet: the API server has taken a definition and said that it serves it, and takes a moment until it does.
var errNotServedYet = errors.New("PodGroups are not served yet")

const servedAfter = 500 * time.Millisecond

// Result is what became of a PodGroup, as a condition of the job has it.
type Result struct {
	There   bool
	Reason  string
	Message string
}

// Ensure makes the PodGroup of a job, or changes it to what the job is now. An error is one that may be gone the next
// time.
func (k *Keeper) Ensure(ctx context.Context, job *v1alpha1.ElasticJob, wanted *gang.Gang) (Result, error) {
	group := wanted.Empty(job.Namespace)
	err := k.client.Get(ctx, client.ObjectKeyFromObject(group), group)
	switch {
	case absent(err):
		return k.missing(ctx, wanted)
	case apierrors.IsNotFound(err):
		return k.create(ctx, job, wanted)
	case err != nil:
		return Result{}, fmt.Errorf("reading PodGroup %s: %w", group.GetName(), err)
	case v1alpha1.OwnerUID(group) != job.UID && goes(group):
		return Result{Reason: ofPredecessor, Message: fmt.Sprintf(
			"the PodGroup %s is of a job of this name that is gone; it is made anew once Kubernetes has removed it",
			group.GetName())}, nil
	case v1alpha1.OwnerUID(group) != job.UID:
		return Result{Reason: ofAnother, Message: fmt.Sprintf(
			"the PodGroup %s is there and does not belong to this job; delete it, or make the pods its members by the "+
				"template's own metadata", group.GetName())}, nil
	}
	return k.update(ctx, job, wanted, group)
}

// goes says that a PodGroup which is not the job's goes by itself: it is deleted, or of a job of this name before.
func goes(group *unstructured.Unstructured) bool {
	return group.GetDeletionTimestamp() != nil || v1alpha1.OwnerUID(group) != ""
}

// absent says that the API server knows no PodGroups of this kind: it has not had them, or no longer has. Then it has
// no words about the object, but answers as for any wrong path.
func absent(err error) bool {
	return meta.IsNoMatchError(err) ||
		apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// missing says why there are no PodGroups. What heals it is a change of the definition, which is heard.
func (k *Keeper) missing(ctx context.Context, wanted *gang.Gang) (Result, error) {
	definition := &unstructured.Unstructured{}
	definition.SetGroupVersionKind(definitionKind)
	err := k.client.Get(ctx, client.ObjectKey{Name: wanted.Scheduler.Definition()}, definition)
	switch {
	case apierrors.IsNotFound(err):
		return Result{Reason: "NoPodGroups", Message: fmt.Sprintf(
			"there is no custom resource definition %s; install %s, or choose another with the annotation %s",
			wanted.Scheduler.Definition(), wanted.Scheduler.Name, gang.AnnotationScheduler)}, nil
	case err != nil:
		return Result{}, fmt.Errorf("reading the definition %s: %w", wanted.Scheduler.Definition(), err)
	case definition.GetDeletionTimestamp() == nil && serves(definition, wanted.Scheduler.Version()):
		return Result{}, errNotServedYet
	}
	return Result{Reason: "NoPodGroups", Message: fmt.Sprintf(
		"the custom resource definition %s does not serve the version %s; install %s in a version that has it",
		wanted.Scheduler.Definition(), wanted.Scheduler.Version(), wanted.Scheduler.Name)}, nil
}

// serves says that a definition is established, and has a version that is served. Where it is not what it should be,
// it does not.
func serves(definition *unstructured.Unstructured, version string) bool {
	conditions, _, conditionsErr := unstructured.NestedSlice(definition.Object, "status", "conditions")
	versions, _, versionsErr := unstructured.NestedSlice(definition.Object, "spec", "versions")
	return conditionsErr == nil && versionsErr == nil &&
		has(conditions, map[string]any{"type": "Established", "status": "True"}) &&
		has(versions, map[string]any{"name": version, "served": true})
}

// has says that one of the objects has all of these fields.
func has(objects []any, fields map[string]any) bool {
	return slices.ContainsFunc(objects, func(object any) bool {
		there, isObject := object.(map[string]any)
		for key, value := range fields {
			if !isObject || there[key] != value {
				return false
			}
		}
		return true
	})
}

func (k *Keeper) create(ctx context.Context, job *v1alpha1.ElasticJob, wanted *gang.Gang) (Result, error) {
	group := wanted.Empty(job.Namespace)
	spec, annotations := wanted.Wanted(job)
	group.Object["spec"] = spec
	group.SetAnnotations(annotations)
	group.SetLabels(map[string]string{elasticjob.LabelName: job.Name})
	group.SetOwnerReferences([]metav1.OwnerReference{elasticjob.Owner(job)})
	if err := k.client.Create(ctx, group); err != nil {
		return k.refused(ctx, err, wanted)
	}
	return there(wanted), nil
}

func (k *Keeper) update(ctx context.Context, job *v1alpha1.ElasticJob, wanted *gang.Gang,
	group *unstructured.Unstructured) (Result, error) {
	spec, annotations := wanted.Wanted(job)
	change := map[string]any{}
	for key, value := range spec {
		written, _, err := unstructured.NestedFieldNoCopy(group.Object, "spec", key)
		if err != nil {
			return Result{}, fmt.Errorf("reading PodGroup %s: %w", group.GetName(), err)
		}
		if !equality.Semantic.DeepEqual(written, value) {
			change["spec"] = spec
		}
	}
	for key, value := range annotations {
		if group.GetAnnotations()[key] != value {
			change["metadata"] = map[string]any{"annotations": annotations}
		}
	}
	if len(change) == 0 {
		return there(wanted), nil
	}
	patch, err := json.Marshal(change)
	if err != nil {
		return Result{}, err
	}
	if err := k.client.Patch(ctx, group, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return k.refused(ctx, err, wanted)
	}
	return there(wanted), nil
}

// refused: what the API server finds wrong with a PodGroup it finds wrong each time.
func (k *Keeper) refused(ctx context.Context, err error, wanted *gang.Gang) (Result, error) {
	if absent(err) {
		return k.missing(ctx, wanted)
	}
	if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) {
		return Result{Reason: "PodGroupRefused", Message: err.Error()}, nil
	}
	return Result{}, fmt.Errorf("writing PodGroup %s: %w", wanted.PodGroup, err)
}

func there(wanted *gang.Gang) Result {
	return Result{There: true, Reason: "PodGroupThere", Message: fmt.Sprintf(
		"PodGroup %s of %s: %d of %d workers find a place together", wanted.PodGroup, wanted.Scheduler.Name,
		wanted.Min, wanted.All)}
}

// say keeps the condition of the job. A nil result is that of a job without a gang, which has none where it never had.
func (k *Keeper) say(ctx context.Context, job *v1alpha1.ElasticJob, result *Result) error {
	before := meta.FindStatusCondition(job.Status.Conditions, v1alpha1.ConditionGang)
	if result == nil {
		if before == nil {
			return nil
		}
		result = &Result{Reason: "NoGang", Message: "the job asks for no gang"}
	}
	status := metav1.ConditionFalse
	if result.There {
		status = metav1.ConditionTrue
	}
	if before != nil && before.Status == status && before.Reason == result.Reason && before.Message == result.Message {
		return nil
	}
	if job.Status.ObservedGeneration == 0 {
		return nil // nobody has written a status yet; whoever does is heard
	}
	condition := metav1.Condition{
		Type: v1alpha1.ConditionGang, Status: status, Reason: result.Reason, Message: clip(result.Message),
		ObservedGeneration: job.Generation, LastTransitionTime: metav1.NewTime(k.now()),
	}
	if before != nil && before.Status == status {
		condition.LastTransitionTime = before.LastTransitionTime
	}
	if err := k.write(ctx, job, condition); err != nil {
		return err
	}
	if !result.There && result.Reason != "NoGang" && result.Reason != ofPredecessor {
		k.events.Eventf(job, nil, corev1.EventTypeWarning, result.Reason, "MakePodGroup", "%s", clip(result.Message))
	}
	return nil
}

// write applies one condition and leaves all others to who writes them.
func (k *Keeper) write(ctx context.Context, job *v1alpha1.ElasticJob, condition metav1.Condition) error {
	patch, err := json.Marshal(map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(),
		"kind":       "ElasticJob",
		"metadata":   map[string]any{"name": job.Name, "namespace": job.Namespace, "uid": job.UID},
		"status":     map[string]any{"conditions": []metav1.Condition{condition}},
	})
	if err != nil {
		return err
	}
	err = k.client.Status().Patch(ctx, job.DeepCopy(), client.RawPatch(types.ApplyPatchType, patch),
		client.FieldOwner("phalanx-operator-gang"), client.ForceOwnership)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("writing the condition %s: %w", condition.Type, err)
	}
	return nil
}

// clip cuts between characters.
func clip(text string) string { return strings.ToValidUTF8(text[:min(len(text), 900)], "") }
