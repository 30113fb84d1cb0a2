package controller

import (
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"phalanx/operator/api/v1alpha1"
	"phalanx/operator/internal/engine"
)

// unseenFor is how long the cache may take to show what this process has written before the API server is asked.
const unseenFor = 15 * time.Second

// ledger keeps, by job, what this process has written and its cache may not show yet, so that no pod is made twice from
// an old picture. Safe for use by several goroutines.
type ledger struct {
	mu    sync.Mutex
	jobs  map[types.UID]*account
	named map[types.NamespacedName]types.UID // the live job of a name
}

// account is one job's. A job is sure once this process has heard of its pods from the API server itself, and until a
// request ends such that nobody knows what it did.
type account struct {
	looked  bool // has been sure before
	sure    bool
	since   time.Time // of the oldest entry
	created map[types.UID]*corev1.Pod
	deleted map[types.UID]bool
	trusted bool                    // all requests of the last round have succeeded
	written *written                // the last status; nil: none, or the cache shows it
	at      time.Time               // of the last status that this process has written
	drains  map[types.UID]time.Time // since when the master knows that a pod is to go
	blocked map[types.UID]time.Time // since when a pod is known not to be able to start
}

// written is a status that was written, and what the job was by it.
type written struct {
	version    string
	generation int64
	status     v1alpha1.ElasticJobStatus
}

func newLedger() *ledger {
	return &ledger{jobs: map[types.UID]*account{}, named: map[types.NamespacedName]types.UID{}}
}

// open is for a job that is there; one of the same name before it is forgotten, and returned. Empty: there was none.
func (l *ledger) open(name types.NamespacedName, job types.UID) types.UID {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.named[name]
	if before == job {
		return ""
	}
	delete(l.jobs, before)
	l.named[name] = job
	return before
}

// close forgets a job that is gone, and returns which it was.
func (l *ledger) close(name types.NamespacedName) types.UID {
	l.mu.Lock()
	defer l.mu.Unlock()
	job := l.named[name]
	delete(l.jobs, job)
	delete(l.named, name)
	return job
}

func (l *ledger) account(job types.UID) *account {
	found := l.jobs[job]
	if found == nil {
		found = &account{created: map[types.UID]*corev1.Pod{}, deleted: map[types.UID]bool{}}
		l.jobs[job] = found
	}
	return found
}

// created notes a pod that the API server has made.
func (l *ledger) created(job types.UID, pod *corev1.Pod, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	account := l.account(job)
	account.begin(now)
	account.created[pod.UID] = pod
}

// deleted notes a pod whose deletion the API server has accepted.
func (l *ledger) deleted(job, pod types.UID, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	account := l.account(job)
	account.begin(now)
	account.deleted[pod] = true
}

// drained notes which pods the job's master knows to go; since when is kept of those that were among them before.
func (l *ledger) drained(job types.UID, pods []types.UID, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	account := l.account(job)
	account.drains = since(account.drains, pods, now)
}

// since is when each of the pods was first among them; before is what it has returned last.
func since(before map[types.UID]time.Time, pods []types.UID, now time.Time) map[types.UID]time.Time {
	if len(pods) == 0 {
		return nil
	}
	found := make(map[types.UID]time.Time, len(pods))
	for _, pod := range pods {
		found[pod] = now
		if at, known := before[pod]; known {
			found[pod] = at
		}
	}
	return found
}

// drainSince is zero for a pod that is not to go.
func (l *ledger) drainSince(job, pod types.UID) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if account := l.jobs[job]; account != nil {
		return account.drains[pod]
	}
	return time.Time{}
}

// blocked notes which pods cannot start, and in them since when: that this process has first seen so.
func (l *ledger) blocked(job types.UID, pods []engine.Pod, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	account := l.account(job)
	var blocked []types.UID
	for i := range pods {
		if pods[i].Blocked.Reason != "" {
			blocked = append(blocked, ownUID(pods[i]))
		}
	}
	account.blocked = since(account.blocked, blocked, now)
	for i := range pods {
		if pods[i].Blocked.Reason != "" {
			pods[i].Blocked.Since = account.blocked[ownUID(pods[i])]
		}
	}
}

func (a *account) begin(now time.Time) {
	if len(a.created)+len(a.deleted) == 0 {
		a.since = now
	}
}

// wrote notes a job whose status the API server has just taken.
func (l *ledger) wrote(job *v1alpha1.ElasticJob, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	account := l.account(job.UID)
	account.written = &written{job.ResourceVersion, job.Generation, *job.Status.DeepCopy()}
	account.at = now
}

// wroteAt is when a status of the job was written last; zero: never.
func (l *ledger) wroteAt(job types.UID) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.account(job).at
}

// trusts says whether the API server has taken what it was asked for the job the last time.
func (l *ledger) trusts(job types.UID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.account(job).trusted
}

// trust notes whether it has.
func (l *ledger) trust(job types.UID, taken bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.account(job).trusted = taken
}

// looked says whether this process knew all pods of the job at some time.
func (l *ledger) looked(job types.UID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.account(job).looked
}

// freshen gives a job of the cache the status that was written last, where the cache is behind that. It returns false
// where the cache does not even show the spec of then: it will soon, and says so.
func (l *ledger) freshen(job *v1alpha1.ElasticJob) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	account := l.account(job.UID)
	last := account.written
	if last == nil {
		return true, nil
	}
	order, err := resourceversion.CompareResourceVersion(job.ResourceVersion, last.version)
	if err != nil {
		return false, fmt.Errorf("comparing versions of %s: %w", job.Name, err)
	}
	if order >= 0 {
		account.written = nil
		return true, nil
	}
	if job.Generation != last.generation {
		return false, nil
	}
	job.ResourceVersion, job.Status = last.version, *last.status.DeepCopy()
	return true, nil
}

// doubt says that nobody knows which pods the job has.
func (l *ledger) doubt(job types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.account(job).sure = false
}

// saw notes that the cache has shown a pod, or that it is gone. Called behind the cache's own update.
func (l *ledger) saw(job types.UID, pod *corev1.Pod, gone bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	account := l.jobs[job]
	if account == nil {
		return
	}
	delete(account.created, pod.UID)
	if gone || pod.DeletionTimestamp != nil {
		delete(account.deleted, pod.UID)
	}
}

// shown drops what a look at the cache has found there, or found gone.
func (l *ledger) shown(job types.UID, created, deleted []types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	account := l.account(job)
	for _, pod := range created {
		delete(account.created, pod)
	}
	for _, pod := range deleted {
		delete(account.deleted, pod)
	}
}

// unseen is what to add to the cache's picture. It is to be read before the cache is: a pod that comes into the cache
// in between is then in both, and not in neither.
type unseen struct {
	created map[types.UID]*corev1.Pod
	deleted map[types.UID]bool
	expires time.Time // zero: there is nothing
}

// unseen returns false where the API server has to be asked first.
func (l *ledger) unseen(job types.UID, now time.Time) (unseen, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	account := l.account(job)
	if !account.sure {
		return unseen{}, false
	}
	if len(account.created)+len(account.deleted) == 0 {
		return unseen{}, true
	}
	expires := account.since.Add(unseenFor)
	if now.After(expires) {
		return unseen{}, false
	}
	copied := unseen{created: map[types.UID]*corev1.Pod{}, deleted: map[types.UID]bool{}, expires: expires}
	for uid, pod := range account.created {
		copied.created[uid] = pod
	}
	for uid := range account.deleted {
		copied.deleted[uid] = true
	}
	return copied, true
}

// settle takes what the API server has listed for all that there is. Entries that the cache has are dropped as it
// shows them, by saw.
func (l *ledger) settle(job types.UID, missing []*corev1.Pod, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	account := l.account(job)
	account.sure, account.looked, account.since = true, true, now
	account.created, account.deleted = map[types.UID]*corev1.Pod{}, map[types.UID]bool{}
	for _, pod := range missing {
		account.created[pod.UID] = pod
	}
}
