package elasticjob

import (
	"cmp"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"phalanx/operator/api/v1alpha1"
)

// PlanStep is what to do for a ScalePlan now.
type PlanStep struct {
	Replicas *int32 // the job's size to write, where it is not nil
	Status   v1alpha1.ScalePlanStatus
}

// PlanDone says that nothing is left to do for a plan: it has ended, or is a record.
func PlanDone(plan *v1alpha1.ScalePlan) bool {
	ended := plan.Status.Phase == v1alpha1.PlanSucceeded || plan.Status.Phase == v1alpha1.PlanFailed
	return ended || plan.Labels[v1alpha1.LabelScaleType] == v1alpha1.ScaleTypeAuto
}

// NextStep decides for a plan. The job is nil where there is none of that name.
func NextStep(plan *v1alpha1.ScalePlan, job *v1alpha1.ElasticJob) PlanStep {
	wanted, err := planSize(plan)
	switch {
	case err != nil:
		return planAt(plan, v1alpha1.PlanFailed, err.Error())
	case begunWith(plan) != "" && (job == nil || job.DeletionTimestamp != nil || job.UID != begunWith(plan)):
		return planAt(plan, v1alpha1.PlanFailed, "the job that was to have another size has been deleted")
	case job == nil || job.DeletionTimestamp != nil:
		return planAt(plan, v1alpha1.PlanPending,
			fmt.Sprintf("there is no ElasticJob %s in this namespace", plan.Spec.OwnerJob))
	case job.Malformed != "": // until somebody mends it
		return planAt(plan, cmp.Or(plan.Status.Phase, v1alpha1.PlanPending),
			fmt.Sprintf("%s cannot be read: %s", job.Name, job.Malformed))
	case job.Status.CompletionTime != nil:
		return planAt(plan, v1alpha1.PlanFailed, fmt.Sprintf("%s has ended", job.Name))
	case plan.Status.Phase != v1alpha1.PlanScaling:
		step := planAt(plan, v1alpha1.PlanScaling, fmt.Sprintf("%s is to have %d workers", job.Name, wanted))
		step.Replicas = &wanted
		return step
	case job.Generation < plan.Status.JobGeneration: // an old picture of the job
		return PlanStep{Status: plan.Status}
	}
	worker := job.Spec.ReplicaSpecs[v1alpha1.ReplicaTypeWorker]
	if worker == nil || replicas(worker) != wanted {
		return planAt(plan, v1alpha1.PlanFailed, "the job has been given another size since")
	}
	there := job.Status.Ready == wanted && job.Status.Replicas == wanted
	if there && job.Status.ObservedGeneration >= plan.Status.JobGeneration {
		return planAt(plan, v1alpha1.PlanSucceeded, fmt.Sprintf("%s has %d workers", job.Name, wanted))
	}
	return PlanStep{Status: plan.Status}
}

// begunWith is the job that a plan was written into: its owner since. One of the same name that comes later is another.
func begunWith(plan *v1alpha1.ScalePlan) types.UID {
	for _, owner := range plan.OwnerReferences {
		if owner.Kind == "ElasticJob" && owner.Name == plan.Spec.OwnerJob {
			return owner.UID
		}
	}
	return ""
}

func planAt(plan *v1alpha1.ScalePlan, phase, message string) PlanStep {
	status := *plan.Status.DeepCopy()
	status.Phase, status.Message = phase, message
	return PlanStep{Status: status}
}

// planSize is the number of workers that a plan asks for, or why that cannot be done.
func planSize(plan *v1alpha1.ScalePlan) (int32, error) {
	spec := &plan.Spec
	switch {
	case plan.Malformed != "":
		return 0, fmt.Errorf("the plan cannot be read: %s", plan.Malformed)
	case spec.OwnerJob == "":
		return 0, fmt.Errorf("spec.ownerJob: empty; expected the name of an ElasticJob")
	case len(spec.CreatePods) > 0:
		return 0, fmt.Errorf("spec.createPods: not supported; give replicaResourceSpecs.worker.replicas")
	case len(spec.RemovePods) > 0:
		return 0, fmt.Errorf("spec.removePods: not supported; give replicaResourceSpecs.worker.replicas, or delete the pods")
	case len(spec.MigratePods) > 0:
		return 0, fmt.Errorf("spec.migratePods: not supported yet; delete the pods, and others take their ranks up")
	}
	for role := range spec.ReplicaResourceSpecs {
		if role != v1alpha1.ReplicaTypeWorker {
			return 0, fmt.Errorf("spec.replicaResourceSpecs.%s: not supported; expected worker", role)
		}
	}
	worker := spec.ReplicaResourceSpecs[v1alpha1.ReplicaTypeWorker]
	if len(worker.Resource) > 0 {
		return 0, fmt.Errorf(
			"spec.replicaResourceSpecs.worker.resource: not supported; resources stand in the job's template")
	}
	if worker.Replicas == nil {
		return 0, fmt.Errorf("spec.replicaResourceSpecs.worker.replicas: expected a number")
	}
	return *worker.Replicas, nil
}
