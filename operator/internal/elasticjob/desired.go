package elasticjob

import (
	"fmt"
	"math"
	"strconv"

	"phalanx/operator/api/v1alpha1"
	"phalanx/operator/internal/engine"
	"phalanx/operator/internal/gang"
)

const defaultRestartCount = 3

// Desired is what the spec asks for. The error is a sentence for the user: the field, its value, what would be right.
// The CRD's own rules have refused most mistakes before; a CRD that is older than the operator has not.
func Desired(job *v1alpha1.ElasticJob, policy engine.Policy) (engine.Desired, error) {
	if job.Malformed != "" {
		return engine.Desired{}, fmt.Errorf("the job cannot be read: %s", job.Malformed)
	}
	if s := job.Spec.DistributionStrategy; s != "" && s != v1alpha1.StrategyAllreduce {
		return engine.Desired{}, fmt.Errorf("spec.distributionStrategy: %q is not supported yet; expected %s", s,
			v1alpha1.StrategyAllreduce)
	}
	for role, spec := range job.Spec.ReplicaSpecs {
		if role != v1alpha1.ReplicaTypeWorker && role != v1alpha1.ReplicaTypeMaster {
			return engine.Desired{}, fmt.Errorf(
				"spec.replicaSpecs.%s: not supported yet; expected worker and dlrover-master", role)
		}
		if spec == nil {
			return engine.Desired{}, fmt.Errorf("spec.replicaSpecs.%s: empty; expected a template", role)
		}
	}
	worker := job.Spec.ReplicaSpecs[v1alpha1.ReplicaTypeWorker]
	if worker == nil || len(worker.Template.Spec.Containers) == 0 {
		return engine.Desired{}, fmt.Errorf(
			"spec.replicaSpecs.worker.template.spec.containers: empty; expected the training container")
	}
	workerRestarts, err := restartCount(v1alpha1.ReplicaTypeWorker, worker, defaultRestartCount)
	if err != nil {
		return engine.Desired{}, err
	}
	masterRestarts := int32(0)
	if master := job.Spec.ReplicaSpecs[v1alpha1.ReplicaTypeMaster]; master != nil {
		if masterRestarts, err = restartCount(v1alpha1.ReplicaTypeMaster, master, 0); err != nil {
			return engine.Desired{}, err
		}
	}
	if _, err := gang.Of(job); err != nil {
		return engine.Desired{}, err
	}
	return engine.Desired{
		Suspended: job.Spec.Suspend != nil && *job.Spec.Suspend,
		Roles: []engine.Role{
			{Name: v1alpha1.ReplicaTypeMaster, Replicas: 1, Decides: true, Limits: policy.Limits(masterRestarts)},
			{Name: v1alpha1.ReplicaTypeWorker, Replicas: replicas(worker), Limits: policy.Limits(workerRestarts)},
		},
	}, nil
}

func replicas(spec *v1alpha1.ReplicaSpec) int32 {
	if spec.Replicas == nil {
		return 1
	}
	return *spec.Replicas
}

// restartCount: DLRover's CRD says restartCount, guides of vendors say restartCounts.
func restartCount(role string, spec *v1alpha1.ReplicaSpec, otherwise int32) (int32, error) {
	switch one, other := spec.RestartCount, spec.RestartCounts; {
	case one != nil && other != nil && *one != *other:
		return 0, fmt.Errorf("spec.replicaSpecs.%s: restartCount is %d and restartCounts %d; expected one of them",
			role, *one, *other)
	case one != nil:
		return *one, nil
	case other != nil:
		return *other, nil
	}
	return otherwise, nil
}

// priorityClass of a rank: "high", "low", or the first part of the ranks high and the others low.
func priorityClass(priority string, rank, replicas int32) string {
	fraction, err := strconv.ParseFloat(priority, 64)
	if err != nil {
		return priority
	}
	if float64(rank) < math.Ceil(fraction*float64(replicas)) {
		return "high"
	}
	return "low"
}
