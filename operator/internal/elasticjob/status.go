package elasticjob

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"phalanx/operator/api/v1alpha1"
	"phalanx/operator/internal/engine"
)

// Memory reads back what Status has written.
func Memory(status *v1alpha1.ElasticJobStatus) engine.Memory {
	memory := engine.Memory{Roles: map[string]engine.RoleMemory{}, Ranks: map[engine.RankKey]engine.RankMemory{}}
	for name, role := range status.Roles {
		memory.Roles[name] = engine.RoleMemory{NextID: role.NextID, Started: role.Started}
	}
	for _, rank := range status.Ranks {
		key := engine.RankKey{Role: rank.Role, Rank: rank.Rank}
		memory.Ranks[key] = engine.RankMemory{Ends: engine.CountsOf(rank.Ends), LastID: rank.LastID}
	}
	for _, node := range status.ExcludedNodes {
		exclusion := engine.Exclusion{Host: node.Name, Until: node.Until.Time, Reason: node.Reason, Refused: node.Refused}
		memory.Excluded = append(memory.Excluded, exclusion)
	}
	for _, kind := range []string{v1alpha1.ConditionSucceeded, v1alpha1.ConditionFailed} {
		found := meta.FindStatusCondition(status.Conditions, kind)
		if found != nil && found.Status == metav1.ConditionTrue {
			memory.Outcome = &engine.Outcome{
				Success: kind == v1alpha1.ConditionSucceeded, Reason: found.Reason, Message: found.Message,
			}
		}
	}
	return memory
}

// Situation is what a status is made of.
type Situation struct {
	Memory  engine.Memory // folded
	Pods    []engine.Pod
	Desired engine.Desired
	Trouble Trouble
	Told    *Told // nil: the job's master is not heard
	Now     time.Time
}

// Trouble is what the operator could not do for a job.
type Trouble struct {
	Reason  string // one word; empty: it could do all
	Message string
}

// Told is what the job's master says of the training.
type Told struct {
	World int64
	Step  *int64 // nil: none was made yet
}

// Status is that of a job in a situation. Times of before stay where nothing has changed, so that the status of an idle
// job is the same each time.
func Status(job *v1alpha1.ElasticJob, at Situation) v1alpha1.ElasticJobStatus {
	status := *job.Status.DeepCopy()
	status.ObservedGeneration = job.Generation
	status.Selector = WorkerSelector(job.Name)
	status.JobStatus = legacyStatus(&status, at)
	master, worker := count(at, v1alpha1.ReplicaTypeMaster), count(at, v1alpha1.ReplicaTypeWorker)
	status.Replicas, status.Ready = worker.live, worker.ready
	if at.Told != nil {
		status.World = &at.Told.World
		if at.Told.Step != nil {
			status.Step = at.Told.Step
		}
	}
	if at.Desired.Suspended || at.Memory.Outcome != nil {
		status.World = nil
	}
	remember(&status, at.Memory)
	now := metav1.NewTime(at.Now)
	if status.StartTime == nil && worker.live+master.live > 0 {
		status.StartTime = &now
	}
	if status.CompletionTime == nil && at.Memory.Outcome != nil {
		status.CompletionTime = &now
	}
	setConditions(job, &status, at, master, worker)
	setPhase(&status, phase(at, master, worker), at.Now)
	return status
}

// SameButCounts says that two statuses differ in nothing but how many pods there are, and in what the messages say of
// single ones.
func SameButCounts(before, after *v1alpha1.ElasticJobStatus) bool {
	one, other := withoutCounts(before), withoutCounts(after)
	return equality.Semantic.DeepEqual(one, other)
}

func withoutCounts(status *v1alpha1.ElasticJobStatus) v1alpha1.ElasticJobStatus {
	rest := *status
	rest.Replicas, rest.Ready = 0, 0
	rest.Conditions = slices.Clone(status.Conditions)
	for i := range rest.Conditions {
		rest.Conditions[i].Message = ""
	}
	if rest.JobStatus != nil {
		legacy := *rest.JobStatus
		legacy.ReplicaStatuses = nil
		rest.JobStatus = &legacy
	}
	return rest
}

// Refused is the status of a job whose spec cannot be carried out.
func Refused(job *v1alpha1.ElasticJob, why error, now time.Time) v1alpha1.ElasticJobStatus {
	status := *job.Status.DeepCopy()
	status.ObservedGeneration = job.Generation
	set(job, &status, now, v1alpha1.ConditionAccepted, false, "InvalidSpec", why.Error())
	return status
}

// tally counts the pods of a role.
type tally struct {
	want, live, ready, running int32
	waiting, blocked           string // one pod's reason, for people
}

func count(at Situation, role string) tally {
	var found tally
	for _, wanted := range at.Desired.Roles {
		if wanted.Name == role {
			found.want = wanted.Replicas
		}
	}
	for i := range at.Pods {
		pod := &at.Pods[i]
		if pod.Role != role || !pod.Live() {
			continue
		}
		found.live++
		if pod.State == engine.Running {
			found.running++
		}
		if pod.Ready {
			found.ready++
		}
		if found.waiting == "" && pod.Waiting != "" {
			found.waiting = pod.Name + ": " + pod.Waiting
		}
		if found.blocked == "" && pod.Blocked.Reason != "" {
			found.blocked = pod.Name + ": " + pod.Blocked.Reason
		}
	}
	return found
}

func phase(at Situation, master, worker tally) string {
	switch {
	case at.Memory.Outcome != nil && at.Memory.Outcome.Success:
		return v1alpha1.PhaseSucceeded
	case at.Memory.Outcome != nil:
		return v1alpha1.PhaseFailed
	case at.Desired.Suspended:
		return v1alpha1.PhaseSuspended
	case worker.running > 0:
		return v1alpha1.PhaseRunning
	case worker.live+master.live > 0:
		return v1alpha1.PhasePending
	}
	return v1alpha1.PhaseCreated
}

func remember(status *v1alpha1.ElasticJobStatus, memory engine.Memory) {
	status.Roles = map[string]v1alpha1.RoleStatus{}
	for name, role := range memory.Roles {
		status.Roles[name] = v1alpha1.RoleStatus{NextID: role.NextID, Started: role.Started}
	}
	status.Ranks, status.Restarts = nil, 0
	keys := slices.SortedFunc(maps.Keys(memory.Ranks), func(a, b engine.RankKey) int {
		return cmp.Or(cmp.Compare(a.Role, b.Role), cmp.Compare(a.Rank, b.Rank))
	})
	for _, key := range keys {
		rank := memory.Ranks[key]
		status.Restarts += rank.Ends.Total()
		status.Ranks = append(status.Ranks, v1alpha1.RankStatus{
			Role: key.Role, Rank: key.Rank, Ends: rank.Ends.Map(), LastID: rank.LastID,
		})
	}
	status.ExcludedNodes = nil
	for _, host := range memory.Excluded {
		status.ExcludedNodes = append(status.ExcludedNodes, v1alpha1.ExcludedNode{
			Name: host.Host, Until: metav1.NewTime(host.Until), Reason: host.Reason, Refused: host.Refused,
		})
	}
}

func set(job *v1alpha1.ElasticJob, status *v1alpha1.ElasticJobStatus, now time.Time, kind string, is bool,
	reason, message string) {
	value := metav1.ConditionFalse
	if is {
		value = metav1.ConditionTrue
	}
	meta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type: kind, Status: value, Reason: reason, Message: clipTo(message, 1024), ObservedGeneration: job.Generation,
		LastTransitionTime: metav1.NewTime(now),
	})
}

func setConditions(job *v1alpha1.ElasticJob, status *v1alpha1.ElasticJobStatus, at Situation, master, worker tally) {
	put := func(kind string, is bool, reason, message string) {
		set(job, status, at.Now, kind, is, reason, message)
	}
	put(v1alpha1.ConditionAccepted, true, "ValidSpec", "")
	put(v1alpha1.ConditionMasterReady, master.ready > 0, readiness(master), master.trouble())
	put(v1alpha1.ConditionWorkersReady, worker.want > 0 && worker.ready >= worker.want, readiness(worker),
		worker.trouble())
	if at.Desired.Suspended || meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionSuspended) != nil {
		reason := "JobResumed"
		if at.Desired.Suspended {
			reason = "JobSuspended"
		}
		put(v1alpha1.ConditionSuspended, at.Desired.Suspended, reason, "")
	}
	if outcome := at.Memory.Outcome; outcome != nil {
		kind := v1alpha1.ConditionFailed
		if outcome.Success {
			kind = v1alpha1.ConditionSucceeded
		}
		put(kind, true, outcome.Reason, outcome.Message)
	}
	switch {
	case at.Trouble.Reason != "":
		put(v1alpha1.ConditionDegraded, true, at.Trouble.Reason, at.Trouble.Message)
	case len(at.Memory.Excluded) > 0:
		put(v1alpha1.ConditionDegraded, true, "NodesExcluded",
			fmt.Sprintf("%d nodes get no pods of this job", len(at.Memory.Excluded)))
	case meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionDegraded) != nil:
		put(v1alpha1.ConditionDegraded, false, "NothingAmiss", "")
	}
}

func readiness(pods tally) string {
	switch {
	case pods.want > 0 && pods.ready >= pods.want:
		return "AllReady"
	case pods.blocked != "":
		return "StartBlocked"
	case pods.waiting != "":
		return "Unschedulable"
	}
	return "NotReady"
}

func (t tally) trouble() string { return cmp.Or(t.blocked, t.waiting) }

func clipTo(message string, most int) string {
	if len(message) > most {
		return message[:most]
	}
	return message
}
