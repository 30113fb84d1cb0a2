package controller

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"phalanx/operator/api/v1alpha1"
	"phalanx/operator/internal/elasticjob"
)

// planIndex finds the plans for a job in the cache.
const planIndex = "spec.ownerJob"

// PlanReconciler carries out ScalePlans.
type PlanReconciler struct {
	client client.Client
	now    func() time.Time
}

var _ reconcile.Reconciler = (*PlanReconciler)(nil)

// +kubebuilder:rbac:groups=elastic.iml.github.io,resources=scaleplans,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=elastic.iml.github.io,resources=scaleplans/status,verbs=update

func setupPlans(manager ctrl.Manager) error {
	reconciler := &PlanReconciler{client: manager.GetClient(), now: time.Now}
	owner := func(object client.Object) []string { return []string{object.(*v1alpha1.ScalePlan).Spec.OwnerJob} }
	err := manager.GetFieldIndexer().IndexField(context.Background(), &v1alpha1.ScalePlan{}, planIndex, owner)
	if err != nil {
		return err
	}
	return builder.ControllerManagedBy(manager).
		For(&v1alpha1.ScalePlan{}).
		Watches(&v1alpha1.ElasticJob{}, handler.EnqueueRequestsFromMapFunc(reconciler.plansOf)).
		Complete(reconciler)
}

func (r *PlanReconciler) plansOf(ctx context.Context, job client.Object) []reconcile.Request {
	var plans v1alpha1.ScalePlanList
	err := r.client.List(ctx, &plans, client.InNamespace(job.GetNamespace()),
		client.MatchingFields{planIndex: job.GetName()})
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "listing the plans of a job")
		return nil
	}
	var requests []reconcile.Request
	for i := range plans.Items {
		if !elasticjob.PlanDone(&plans.Items[i]) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&plans.Items[i])})
		}
	}
	return requests
}

// Reconcile brings one plan a step further. A plan is carried out once: what happens to the job later is not undone.
func (r *PlanReconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	var plan v1alpha1.ScalePlan
	if err := r.client.Get(ctx, request.NamespacedName, &plan); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if plan.DeletionTimestamp != nil || elasticjob.PlanDone(&plan) {
		return reconcile.Result{}, nil
	}
	var job *v1alpha1.ElasticJob
	found := v1alpha1.ElasticJob{}
	err := r.client.Get(ctx, types.NamespacedName{Namespace: plan.Namespace, Name: plan.Spec.OwnerJob}, &found)
	switch {
	case err == nil:
		job = &found
	case !apierrors.IsNotFound(err):
		return reconcile.Result{}, err
	}
	step := elasticjob.NextStep(&plan, job)
	if step.Replicas != nil {
		if err := r.resize(ctx, &plan, job, *step.Replicas); err != nil {
			return reconcile.Result{}, err
		}
		step.Status.JobGeneration = job.Generation
	}
	return reconcile.Result{}, r.writeStatus(ctx, &plan, step.Status)
}

// resize writes the wish into the job, and makes the plan go with it.
func (r *PlanReconciler) resize(ctx context.Context, plan *v1alpha1.ScalePlan, job *v1alpha1.ElasticJob,
	replicas int32) error {
	wish := fmt.Appendf(nil, `{"spec":{"replicaSpecs":{%q:{"replicas":%d}}}}`, v1alpha1.ReplicaTypeWorker, replicas)
	if err := r.client.Patch(ctx, job, client.RawPatch(types.MergePatchType, wish)); err != nil {
		return fmt.Errorf("resizing %s: %w", job.Name, err)
	}
	before := plan.DeepCopy()
	owner := elasticjob.Owner(job)
	owner.Controller, owner.BlockOwnerDeletion = nil, nil
	plan.OwnerReferences = []metav1.OwnerReference{owner}
	if err := r.client.Patch(ctx, plan, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("naming the plan's owner: %w", err)
	}
	return nil
}

func (r *PlanReconciler) writeStatus(ctx context.Context, plan *v1alpha1.ScalePlan,
	status v1alpha1.ScalePlanStatus) error {
	now := metav1.NewTime(r.now())
	if status.CreateTime == nil {
		status.CreateTime = &now
	}
	if status.FinishTime == nil && (status.Phase == v1alpha1.PlanSucceeded || status.Phase == v1alpha1.PlanFailed) {
		status.FinishTime = &now
	}
	if equality.Semantic.DeepEqual(plan.Status, status) {
		return nil
	}
	plan.Status = status
	return client.IgnoreNotFound(r.client.Status().Update(ctx, plan))
}
