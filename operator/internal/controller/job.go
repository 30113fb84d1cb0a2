package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"phalanx/operator/api/v1alpha1"
	"phalanx/operator/internal/elasticjob"
	"phalanx/operator/internal/engine"
	"phalanx/operator/internal/link/platformpb"
)

// JobReconciler carries out ElasticJobs.
type JobReconciler struct {
	client   client.Client // reads from the cache
	server   client.Reader // reads from the API server
	events   events.EventRecorder
	masters  masters
	switches switches // nil: nobody knows under which switches nodes are
	ledger   *ledger
	first    *firstLook
	nodes    *nodes
	policy   engine.Policy
	options  elasticjob.Options
	now      func() time.Time
}

var _ reconcile.Reconciler = (*JobReconciler)(nil)

// +kubebuilder:rbac:groups=elastic.iml.github.io,resources=elasticjobs,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=elastic.iml.github.io,resources=elasticjobs/status,verbs=update
// +kubebuilder:rbac:groups=elastic.iml.github.io,resources=elasticjobs/finalizers,verbs=update
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups="",resources=services,verbs=get;list;watch;create
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconcile brings one job as near to its spec as can be done now.
func (r *JobReconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	var job v1alpha1.ElasticJob
	if err := r.client.Get(ctx, request.NamespacedName, &job); err != nil {
		if apierrors.IsNotFound(err) {
			r.masters.Close(r.ledger.close(request.NamespacedName))
		}
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if job.DeletionTimestamp != nil {
		return reconcile.Result{}, nil // what it owns goes with it
	}
	r.masters.Close(r.ledger.open(request.NamespacedName, job.UID))
	if fresh, err := r.ledger.freshen(&job); err != nil || !fresh {
		return reconcile.Result{}, err
	}
	desired, err := elasticjob.Desired(&job, r.policy)
	if err != nil {
		_, err := r.writeStatus(ctx, &job, elasticjob.Refused(&job, err, r.now()))
		return reconcile.Result{}, err
	}
	return r.reconcile(ctx, &job, desired)
}

func (r *JobReconciler) reconcile(ctx context.Context, job *v1alpha1.ElasticJob,
	desired engine.Desired) (reconcile.Result, error) {
	memory := elasticjob.Memory(&job.Status)
	isOver := desired.Suspended || memory.Outcome != nil
	var noToken error
	if isOver {
		r.masters.Close(job.UID) // nobody is there any more
	} else {
		noToken = r.ensureToken(ctx, job)
	}
	now := r.now()
	asked := map[string]host{}
	before, err := r.observe(ctx, job, now, asked)
	if err != nil {
		return reconcile.Result{}, err
	}
	r.hear(job, before.pods)
	observed := engine.Observed{Pods: before.pods, Memory: memory, Going: before.going}
	plan := sort(engine.Decide(observed, desired, r.policy, now))
	if noToken != nil && !begun(job) {
		plan.creates = nil // they would begin with another's token, or none
	}
	r.drain(job, plan, now)
	r.tell(job, before.pods, desired, plan, now)
	if plan.finish != nil {
		memory.Outcome = &plan.finish.Outcome // before what it leads to, so that nobody decides otherwise later
	}
	if plan.finish != nil || plan.blames {
		first := elasticjob.Situation{Memory: memory, Pods: before.pods, Desired: desired}
		if _, err := r.summarize(ctx, job, first); err != nil {
			return reconcile.Result{}, err
		}
	}
	plan.lives = !isOver && plan.finish == nil
	plan.blocked = slices.ContainsFunc(before.pods, func(pod engine.Pod) bool { return pod.Blocked.Reason != "" })
	failure := errors.Join(noToken, r.carryOut(ctx, job, plan))
	after, err := r.observe(ctx, job, r.now(), asked)
	if err != nil {
		return reconcile.Result{}, errors.Join(failure, err)
	}
	told := r.hear(job, after.pods)
	if plan.finish != nil {
		r.masters.Close(job.UID)
	}
	due, err := r.summarize(ctx, job, elasticjob.Situation{
		Memory: memory, Pods: after.pods, Desired: desired, Told: told, Trouble: troubleOf(failure),
	})
	if err != nil {
		return reconcile.Result{}, errors.Join(failure, err)
	}
	return reconcile.Result{RequeueAfter: r.wait(plan.wake, after.expires, due)}, failure
}

// plan is what the engine wants, by what carries it out.
type plan struct {
	lives   bool // the job is to have pods
	blocked bool // one of them cannot start
	finish  *engine.Finish
	drains  []engine.Drain
	blames  bool // a node: that is kept before the pod that shows it goes
	deletes []engine.Delete
	creates []engine.Create
	wake    time.Time
}

func sort(actions []engine.Action) plan {
	var sorted plan
	for _, action := range actions {
		switch action := action.(type) {
		case engine.Finish:
			sorted.finish = &action
		case engine.Delete:
			sorted.deletes = append(sorted.deletes, action)
			class, _ := engine.Classify(&action.Pod)
			sorted.blames = sorted.blames || class == engine.Hardware
		case engine.Drain:
			sorted.drains = append(sorted.drains, action)
		case engine.Create:
			sorted.creates = append(sorted.creates, action)
		case engine.Wake:
			sorted.wake = action.At
		}
	}
	return sorted
}

// wait is until the first of the times that are not zero; zero where there is none.
func (r *JobReconciler) wait(times ...time.Time) time.Duration {
	var wait time.Duration
	for _, at := range times {
		if left := max(at.Sub(r.now()), time.Millisecond); !at.IsZero() && (wait == 0 || left < wait) {
			wait = left
		}
	}
	return wait
}

func (r *JobReconciler) carryOut(ctx context.Context, job *v1alpha1.ElasticJob, plan plan) error {
	var noService error
	if plan.lives {
		noService = r.ensureService(ctx, job)
	}
	if noService != nil {
		plan.creates = nil // they would find another master, or none
	}
	r.announce(job, plan)
	var noToken error
	if plan.lives && (len(plan.creates) > 0 || plan.blocked) {
		noToken = r.keepToken(ctx, job)
	}
	if len(plan.deletes)+len(plan.creates) == 0 {
		return errors.Join(noService, noToken)
	}
	first := 1
	if r.ledger.trusts(job.UID) {
		first = maxInFlight
	}
	err := r.request(ctx, job, plan, first)
	r.ledger.trust(job.UID, err == nil)
	return errors.Join(noService, noToken, err)
}

func (r *JobReconciler) request(ctx context.Context, job *v1alpha1.ElasticJob, plan plan, first int) error {
	_, deleteErr := slowStart(ctx, first, len(plan.deletes), func(ctx context.Context, i int) error {
		return r.delete(ctx, job, plan.deletes[i])
	})
	made := make([]bool, len(plan.creates))
	_, createErr := slowStart(ctx, first, len(plan.creates), func(ctx context.Context, i int) error {
		err := r.create(ctx, job, plan.creates[i])
		made[i] = err == nil
		return err
	})
	r.tellMade(job, plan.creates, made)
	return errors.Join(deleteErr, createErr)
}

func (r *JobReconciler) create(ctx context.Context, job *v1alpha1.ElasticJob, create engine.Create) error {
	pod := elasticjob.Pod(job, create, r.options)
	err := r.client.Create(ctx, pod)
	if err == nil {
		r.ledger.created(job.UID, pod, r.now())
		r.warn(job, create)
		return nil
	}
	if !certain(err) {
		r.ledger.doubt(job.UID)
	}
	return fmt.Errorf("creating pod %s: %w", pod.Name, err)
}

// certain says that a request that has failed has done nothing, and that we knew what there was.
func certain(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) ||
		apierrors.IsTooManyRequests(err) || apierrors.IsNotFound(err)
}

func (r *JobReconciler) delete(ctx context.Context, job *v1alpha1.ElasticJob, delete engine.Delete) error {
	pod := &corev1.Pod{}
	pod.Name, pod.Namespace = delete.Pod.Name, job.Namespace
	uid := ownUID(delete.Pod)
	options := []client.DeleteOption{client.Preconditions{UID: &uid}}
	if delete.Force {
		options = append(options, client.GracePeriodSeconds(0))
	}
	err := r.client.Delete(ctx, pod, options...)
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("deleting pod %s: %w", pod.Name, err)
	}
	r.ledger.deleted(job.UID, uid, r.now())
	return nil
}

// ensureService makes the service of the job's master where it is not there, as when somebody has deleted it.
func (r *JobReconciler) ensureService(ctx context.Context, job *v1alpha1.ElasticJob) error {
	found, wanted := &corev1.Service{}, elasticjob.Service(job)
	key := client.ObjectKeyFromObject(wanted)
	err := r.client.Get(ctx, key, found)
	if apierrors.IsNotFound(err) {
		err = r.client.Create(ctx, wanted)
		if err == nil {
			return nil
		}
		if apierrors.IsAlreadyExists(err) { // the cache does not show it yet, or it is no job's
			err = r.server.Get(ctx, key, found)
		}
	}
	if err != nil {
		return trouble{"ServiceRefused", fmt.Errorf("service %s: %w", key.Name, err)}
	}
	if v1alpha1.OwnerUID(found) != job.UID {
		return trouble{"ServiceOfAnother", fmt.Errorf(
			"service %s belongs to something else than this job; expected it to go with its owner", key.Name)}
	}
	return nil
}

// summarize writes the status, where it is another than before. The situation's memory is as it was before this look.
// The time is writeStatus's.
func (r *JobReconciler) summarize(ctx context.Context, job *v1alpha1.ElasticJob,
	at elasticjob.Situation) (time.Time, error) {
	at.Now = r.now()
	at.Memory = engine.Fold(at.Memory, at.Pods, at.Desired, r.policy, at.Now)
	return r.writeStatus(ctx, job, elasticjob.Status(job, at))
}

// trouble is an error that has a name of its own in the status.
type trouble struct {
	reason string
	error
}

func (t trouble) Unwrap() error { return t.error }

// troubleOf is an error as the status has it.
func troubleOf(err error) elasticjob.Trouble {
	if err == nil {
		return elasticjob.Trouble{}
	}
	var named trouble
	if errors.As(err, &named) {
		return elasticjob.Trouble{Reason: named.reason, Message: err.Error()}
	}
	return elasticjob.Trouble{Reason: "PodsRefused", Message: err.Error()}
}

// countsEvery is how often a status is written of which nothing but counts has changed.
const countsEvery = 200 * time.Millisecond

// writeStatus fails where the job has changed since it was read: then it is read anew. The time it returns is when to
// come again, for a status that waits; zero where none does. While hundreds of pods start, each of them is news.
func (r *JobReconciler) writeStatus(ctx context.Context, job *v1alpha1.ElasticJob,
	status v1alpha1.ElasticJobStatus) (time.Time, error) {
	if equality.Semantic.DeepEqual(job.Status, status) {
		return time.Time{}, nil
	}
	due := r.ledger.wroteAt(job.UID).Add(countsEvery)
	if r.now().Before(due) && elasticjob.SameButCounts(&job.Status, &status) {
		return due, nil
	}
	job.Status = status
	switch err := r.client.Status().Update(ctx, job); {
	case err == nil:
		r.ledger.wrote(job, r.now())
	case !apierrors.IsNotFound(err): // gone meanwhile: nobody reads it
		return time.Time{}, fmt.Errorf("writing status: %w", err)
	}
	return time.Time{}, nil
}

// announce tells people, in one event and one line for all pods of a kind.
func (r *JobReconciler) announce(job *v1alpha1.ElasticJob, plan plan) {
	log := ctrl.Log.WithName("elasticjob").WithValues("namespace", job.Namespace, "name", job.Name)
	if plan.finish != nil {
		outcome := plan.finish.Outcome
		kind := corev1.EventTypeWarning
		if outcome.Success {
			kind = corev1.EventTypeNormal
		}
		log.Info("finished", "success", outcome.Success, "reason", outcome.Reason, "why", outcome.Message)
		r.events.Eventf(job, nil, kind, outcome.Reason, "Finish", "%s", clip(outcome.Message))
	}
	for _, delete := range plan.deletes {
		log.Info("deleting a pod", "pod", delete.Pod.Name, "why", delete.Reason)
	}
}

// tellMade tells people and the job's master which of these pods there are now, and take up a rank whose pod was lost.
func (r *JobReconciler) tellMade(job *v1alpha1.ElasticJob, creates []engine.Create, made []bool) {
	log := ctrl.Log.WithName("elasticjob").WithValues("namespace", job.Namespace, "name", job.Name)
	relaunches := 0
	var first string
	for i, create := range creates {
		if create.Reason == "" || !made[i] {
			continue
		}
		line := elasticjob.DescribeCreate(job, create)
		log.Info("relaunching", "rank", create.Rank, "why", line)
		if relaunches == 0 {
			first = line
		}
		relaunches++
		if create.Role == v1alpha1.ReplicaTypeWorker {
			r.masters.Report(job.UID, &platformpb.PlatformFact{
				Name: elasticjob.PodName(job.Name, create.Role, create.ID), Kind: "Relaunched", Sentence: line,
			})
		}
	}
	if relaunches > 0 {
		r.events.Eventf(job, nil, corev1.EventTypeWarning, "Relaunched", "Relaunch", "%d ranks get new pods; %s",
			relaunches, clip(first))
	}
}

// warn tells once, with the job's first pod, what of it has no effect.
func (r *JobReconciler) warn(job *v1alpha1.ElasticJob, create engine.Create) {
	if create.Role != v1alpha1.ReplicaTypeMaster || create.ID > 0 {
		return
	}
	if text := elasticjob.Unheeded(job); text != "" {
		r.events.Eventf(job, nil, corev1.EventTypeWarning, "AnnotationsUnheeded", "Create", "%s", clip(text))
	}
}

func clip(text string) string { return text[:min(len(text), 900)] }
