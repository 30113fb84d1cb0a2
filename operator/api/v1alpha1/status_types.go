package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ElasticJobStatus says what has become of the job. What the operator must not forget is in here, too: it survives the
// operator, and its pods.
type ElasticJobStatus struct {
	// Phase is one word for people: Created, Pending, Running, Suspended, Succeeded or Failed.
	Phase string `json:"phase,omitempty"`
	// ObservedGeneration is that of the spec this status is about.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Replicas is the number of worker pods that are there and have not ended.
	Replicas int32 `json:"replicas"`
	// Ready is how many of them are ready.
	Ready int32 `json:"ready"`
	// Selector finds the worker pods, for autoscalers.
	Selector string `json:"selector,omitempty"`
	// World is the number of ranks that train, as the job's master has said last. A job that is suspended or has ended has
	// none.
	World *int64 `json:"world,omitempty"`
	// Step is the last step that the job's master knows of.
	Step *int64 `json:"step,omitempty"`
	// Restarts is how many pods have taken up a rank that had one before, whatever the cause.
	Restarts int32 `json:"restarts"`

	StartTime      *metav1.Time `json:"startTime,omitempty"`
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`

	// Roles keeps, by role, which ids and ranks have been given out.
	Roles map[string]RoleStatus `json:"roles,omitempty"`
	// Ranks are those whose pods have ended before their time, with how often and why: their budgets.
	//
	// +listType=map
	// +listMapKey=role
	// +listMapKey=rank
	Ranks []RankStatus `json:"ranks,omitempty"`
	// ExcludedNodes are nodes on which no pod of this job is put.
	//
	// +listType=map
	// +listMapKey=name
	ExcludedNodes []ExcludedNode `json:"excludedNodes,omitempty"`

	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// JobStatus is what DLRover's own tools read.
	JobStatus *JobStatus `json:"status,omitempty"`
	// ScalePlan is a field of the first generation. Nobody writes it.
	ScalePlan string `json:"scalePlan,omitempty"`
}

// RoleStatus is what was given out within a role.
type RoleStatus struct {
	// NextID is the id of the next pod. Ids are never used twice.
	NextID int32 `json:"nextID"`
	// Started is how many ranks, from 0, have had a pod at the present size.
	Started int32 `json:"started"`
}

// RankStatus is how often a rank had to be taken up by a new pod, by class of the end of the one before.
type RankStatus struct {
	Role string `json:"role"`
	Rank int32  `json:"rank"`
	// Ends counts by class: Application, OutOfMemory, Hardware, Killed, Disruption, Deleted.
	Ends map[string]int32 `json:"ends"`
	// LastID is the id of its newest pod, which may be gone.
	LastID int32 `json:"lastID"`
}

// ExcludedNode is a node on which no pod of this job is put.
type ExcludedNode struct {
	Name   string      `json:"name"`
	Until  metav1.Time `json:"until"`
	Reason string      `json:"reason"`
	// Refused: it has refused pods, and nobody says that it is bad.
	Refused bool `json:"refused,omitempty"`
}

// JobStatus has the fields of DLRover's status.status.
type JobStatus struct {
	Conditions        []JobCondition            `json:"conditions"`
	ReplicaStatuses   map[string]*ReplicaStatus `json:"replicaStatuses"`
	StartTime         *metav1.Time              `json:"startTime,omitempty"`
	CompletionTime    *metav1.Time              `json:"completionTime,omitempty"`
	LastReconcileTime *metav1.Time              `json:"lastReconcileTime,omitempty"`
}

// JobCondition is a condition of status.status.
type JobCondition struct {
	Type               string                 `json:"type"`
	Status             metav1.ConditionStatus `json:"status"`
	Reason             string                 `json:"reason,omitempty"`
	Message            string                 `json:"message,omitempty"`
	LastUpdateTime     metav1.Time            `json:"lastUpdateTime,omitempty"`
	LastTransitionTime metav1.Time            `json:"lastTransitionTime,omitempty"`
}

// ReplicaStatus counts the pods of a role by phase.
type ReplicaStatus struct {
	Initial       int32                 `json:"initial,omitempty"`
	Pending       int32                 `json:"pending,omitempty"`
	Active        int32                 `json:"active,omitempty"`
	Succeeded     int32                 `json:"succeeded,omitempty"`
	Failed        int32                 `json:"failed,omitempty"`
	LabelSelector *metav1.LabelSelector `json:"labelSelector,omitempty"`
}

// OwnerUID names the job an object belongs to, or is empty.
func OwnerUID(object metav1.Object) types.UID {
	owner := metav1.GetControllerOf(object)
	if owner == nil || owner.Kind != "ElasticJob" || owner.APIVersion != GroupVersion.String() {
		return ""
	}
	return owner.UID
}
