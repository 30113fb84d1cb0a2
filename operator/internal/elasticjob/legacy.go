package elasticjob

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"phalanx/operator/api/v1alpha1"
	"phalanx/operator/internal/engine"
)

// legacyStatus is status.status, which DLRover's tools read: counts of pods by role.
func legacyStatus(status *v1alpha1.ElasticJobStatus, at Situation) *v1alpha1.JobStatus {
	legacy := &v1alpha1.JobStatus{Conditions: []v1alpha1.JobCondition{}}
	if status.JobStatus != nil {
		legacy.Conditions = status.JobStatus.Conditions
	}
	legacy.ReplicaStatuses = map[string]*v1alpha1.ReplicaStatus{}
	for i := range at.Pods {
		pod := &at.Pods[i]
		counts := legacy.ReplicaStatuses[pod.Role]
		if counts == nil {
			counts = &v1alpha1.ReplicaStatus{}
			legacy.ReplicaStatuses[pod.Role] = counts
		}
		switch pod.State {
		case engine.Pending:
			counts.Pending++
		case engine.Running:
			counts.Active++
		case engine.Succeeded:
			counts.Succeeded++
		case engine.Failed:
			counts.Failed++
		}
	}
	return legacy
}

// setPhase keeps, as in DLRover, one condition for each phase that the job has been in; the newest is true, and beside
// it Created.
func setPhase(status *v1alpha1.ElasticJobStatus, phase string, now time.Time) {
	status.JobStatus.StartTime, status.JobStatus.CompletionTime = status.StartTime, status.CompletionTime
	if status.Phase == phase {
		return
	}
	status.Phase = phase
	stamp := metav1.NewTime(now)
	var conditions []v1alpha1.JobCondition
	for _, condition := range status.JobStatus.Conditions {
		if condition.Type == phase {
			continue
		}
		if condition.Type != v1alpha1.PhaseCreated && condition.Status == metav1.ConditionTrue {
			condition.Status, condition.LastUpdateTime, condition.LastTransitionTime = metav1.ConditionFalse, stamp, stamp
		}
		conditions = append(conditions, condition)
	}
	status.JobStatus.Conditions = append(conditions, v1alpha1.JobCondition{
		Type: phase, Status: metav1.ConditionTrue, Reason: "Job" + phase, LastUpdateTime: stamp, LastTransitionTime: stamp,
	})
}
