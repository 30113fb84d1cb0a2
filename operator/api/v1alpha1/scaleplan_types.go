package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Phases of a ScalePlan.
const (
	PlanPending   = "Pending"
	PlanScaling   = "Scaling"
	PlanSucceeded = "Succeeded"
	PlanFailed    = "Failed"
)

// Labels of ScalePlans. A plan with scale-type: auto is a record, and asks for nothing.
const (
	LabelScaleType = "scale-type"
	ScaleTypeAuto  = "auto"
)

// ScalePlan is a wish that a job have another size, carried out once.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=scaleplans,singular=scaleplan
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name=Phase,type=string,JSONPath=.status.phase
// +kubebuilder:printcolumn:name=Job,type=string,JSONPath=.spec.ownerJob
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=.metadata.creationTimestamp
type ScalePlan struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   ScalePlanSpec   `json:"spec,omitempty"`
	Status ScalePlanStatus `json:"status,omitempty"`

	// Malformed says why the plan could not be read; Spec is empty then. Empty: it could.
	Malformed string `json:"-"`
}

// ScalePlanList is a list of ScalePlans.
//
// +kubebuilder:object:root=true
type ScalePlanList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ScalePlan `json:"items"`
}

// ScalePlanSpec says what to change.
type ScalePlanSpec struct {
	// OwnerJob is the ElasticJob, in the plan's namespace.
	OwnerJob string `json:"ownerJob,omitempty"`
	// ReplicaResourceSpecs has the sizes, by role. Only the worker's replicas can be changed.
	ReplicaResourceSpecs map[string]ReplicaResourceSpec `json:"replicaResourceSpecs,omitempty"`
	// CreatePods is refused: sizes say the same.
	CreatePods []PodMeta `json:"createPods,omitempty"`
	// RemovePods is refused: delete the pods, or change the size.
	RemovePods []PodMeta `json:"removePods,omitempty"`
	// MigratePods is refused for now.
	MigratePods []PodMeta `json:"migratePods,omitempty"`
	// PsHosts has no effect: there are no parameter servers.
	PsHosts []string `json:"psHosts,omitempty"`
}

// ReplicaResourceSpec is the size of a role.
type ReplicaResourceSpec struct {
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100000
	Replicas *int32 `json:"replicas,omitempty"`
	// Resource is refused: a job's resources stand in its template.
	Resource corev1.ResourceList `json:"resource,omitempty"`
}

// PodMeta is one pod of a plan.
type PodMeta struct {
	Name      string              `json:"name,omitempty"`
	ID        int32               `json:"id,omitempty"`
	Type      string              `json:"type,omitempty"`
	RankIndex int32               `json:"rankIndex,omitempty"`
	Service   string              `json:"service,omitempty"`
	Resource  corev1.ResourceList `json:"resource,omitempty"`
}

// ScalePlanStatus says what has become of the wish.
type ScalePlanStatus struct {
	// Phase is Pending, Scaling, Succeeded or Failed.
	Phase      string       `json:"phase,omitempty"`
	Message    string       `json:"message,omitempty"`
	CreateTime *metav1.Time `json:"createTime,omitempty"`
	FinishTime *metav1.Time `json:"finishTime,omitempty"`
	// JobGeneration is the job's that the wish was written with.
	JobGeneration int64 `json:"jobGeneration,omitempty"`
}
