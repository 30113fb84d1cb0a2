package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Replica types: keys of spec.replicaSpecs.
const (
	ReplicaTypeWorker = "worker"
	ReplicaTypeMaster = "dlrover-master"
)

// StrategyAllreduce is the distribution strategy of PyTorch jobs.
const StrategyAllreduce = "AllreduceStrategy"

// Phases of an ElasticJob, as in DLRover.
const (
	PhaseCreated   = "Created"
	PhasePending   = "Pending"
	PhaseRunning   = "Running"
	PhaseSuspended = "Suspended"
	PhaseSucceeded = "Succeeded"
	PhaseFailed    = "Failed"
)

// Types of status.conditions.
const (
	ConditionAccepted     = "Accepted"     // the spec is one that can be carried out
	ConditionMasterReady  = "MasterReady"  // the job's master runs
	ConditionWorkersReady = "WorkersReady" // all workers that the spec asks for run
	ConditionGang         = "GangReady"    // the PodGroup of a job whose workers are scheduled together is there
	ConditionSuspended    = "Suspended"
	ConditionSucceeded    = "Succeeded"
	ConditionFailed       = "Failed"
	ConditionDegraded     = "Degraded" // nodes are left out, or pods refused; the message says which and why
)

// ElasticJob is a training job whose number of nodes may change while it runs.
//
// The name is part of the service elasticjob-NAME-dlrover-master, which must be a DNS label.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=elasticjobs,singular=elasticjob
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicaSpecs.worker.replicas,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:printcolumn:name=Phase,type=string,JSONPath=.status.phase
// +kubebuilder:printcolumn:name=Desired,type=integer,JSONPath=.spec.replicaSpecs.worker.replicas
// +kubebuilder:printcolumn:name=Ready,type=integer,JSONPath=.status.ready
// +kubebuilder:printcolumn:name=World,type=integer,JSONPath=.status.world
// +kubebuilder:printcolumn:name=Step,type=integer,JSONPath=.status.step
// +kubebuilder:printcolumn:name=Restarts,type=integer,JSONPath=.status.restarts
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=.metadata.creationTimestamp
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 37 && !self.metadata.name.contains('.')",message="metadata.name: expected at most 37 characters and no dot, since the service elasticjob-NAME-dlrover-master is a DNS label"
type ElasticJob struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   ElasticJobSpec   `json:"spec,omitempty"`
	Status ElasticJobStatus `json:"status,omitempty"`

	// Malformed says why the job could not be read; Spec is empty then. Empty: it could.
	Malformed string `json:"-"`
}

// ElasticJobList is a list of ElasticJobs.
//
// +kubebuilder:object:root=true
type ElasticJobList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ElasticJob `json:"items"`
}

// ElasticJobSpec says what to run.
type ElasticJobSpec struct {
	// DistributionStrategy is AllreduceStrategy, also where it is not given.
	//
	// +kubebuilder:validation:XValidation:rule="self == '' || self == 'AllreduceStrategy'",message="distributionStrategy: expected AllreduceStrategy; parameter servers and custom strategies are not supported yet"
	// +kubebuilder:validation:MaxLength=64
	DistributionStrategy string `json:"distributionStrategy,omitempty"`

	// ReplicaSpecs holds the worker's and, where a job brings its own, the master's (dlrover-master).
	//
	// +kubebuilder:validation:MaxProperties=8
	// +kubebuilder:validation:XValidation:rule="'worker' in self",message="replicaSpecs: expected a worker"
	// +kubebuilder:validation:XValidation:rule="size(self) == 1 || size(self) == 2 && 'dlrover-master' in self",message="replicaSpecs: expected worker and dlrover-master; other roles are not supported yet"
	ReplicaSpecs map[string]*ReplicaSpec `json:"replicaSpecs"`

	// Suspend ends all pods and keeps the job, its restarts and its excluded nodes, until it is false again.
	Suspend *bool `json:"suspend,omitempty"`

	// OptimizeMode has no effect: the job's master decides for the job (single-job).
	OptimizeMode string `json:"optimizeMode,omitempty"`
	// ResourceLimits has no effect: nobody changes a job's resources by himself.
	ResourceLimits map[string]string `json:"resourceLimits,omitempty"`
	// BrainService has no effect.
	BrainService string `json:"brainService,omitempty"`
	// Envs has no effect, as in DLRover: put variables into the template.
	Envs map[string]*corev1.EnvVar `json:"envs,omitempty"`
	// EnableDynamicSharding has no effect; of the first generation.
	EnableDynamicSharding bool `json:"enableDynamicSharding,omitempty"`
	// EnableElasticScheduling has no effect; of the first generation.
	EnableElasticScheduling bool `json:"enableElasticScheduling,omitempty"`
}

// ReplicaSpec says how many pods of one role there are, and what they run.
type ReplicaSpec struct {
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100000
	Replicas *int32 `json:"replicas,omitempty"`

	Template PodTemplate `json:"template,omitempty"`

	// RestartCount is how many pods may take a rank up behind failures of its program before the job ends; 3 for
	// workers, 0 for the master where it is not given. Evictions and preemptions cost none.
	//
	// +kubebuilder:validation:Minimum=0
	RestartCount *int32 `json:"restartCount,omitempty"`
	// RestartCounts is another name of RestartCount.
	//
	// +kubebuilder:validation:Minimum=0
	RestartCounts *int32 `json:"restartCounts,omitempty"`

	// Priority is the priority class of the pods: high, low, or the fraction of ranks, from 0, that is high ("0.5").
	//
	// +kubebuilder:validation:Pattern=`^(high|low|0(\.[0-9]+)?|1(\.0+)?)?$`
	Priority string `json:"priority,omitempty"`

	// RestartPolicy has no effect: pods never restart by themselves, new ones take their place.
	RestartPolicy corev1.RestartPolicy `json:"restartPolicy,omitempty"`
	// AutoScale has no effect.
	AutoScale *bool `json:"autoScale,omitempty"`
	// RestartTimeout has no effect.
	RestartTimeout int32 `json:"restartTimeout,omitempty"`
	// BatchScheduler is volcano, coscheduling or koordinator for workers that find their places together, or default or
	// none. Where it is empty, the template's schedulerName says it.
	BatchScheduler string `json:"BatchScheduler,omitempty"`
	// CriticalNodes has no effect.
	CriticalNodes string `json:"criticalNodes,omitempty"`
}
