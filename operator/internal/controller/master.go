package controller

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"phalanx/operator/api/v1alpha1"
	"phalanx/operator/internal/elasticjob"
	"phalanx/operator/internal/engine"
	"phalanx/operator/internal/link"
	"phalanx/operator/internal/link/platformpb"
	"phalanx/operator/internal/topology"
)

// switches is what the controller needs of live.Topology.
type switches interface{ Table() *topology.Table }

// masters is what the controller needs of link.Links.
type masters interface {
	Knows(job types.UID) bool
	Open(job types.UID, name types.NamespacedName, master link.Master)
	Close(job types.UID)
	Tell(job types.UID, wish *platformpb.PlatformView)
	Report(job types.UID, fact *platformpb.PlatformFact)
	View(job types.UID) (view *platformpb.JobView, current bool)
	Token(job types.UID) string
}

// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;create

// ensureToken makes the secret by which the job's programs know each other, and has its master dialled. The secret is
// read until it is as it should be, and then no more.
func (r *JobReconciler) ensureToken(ctx context.Context, job *v1alpha1.ElasticJob) error {
	if r.masters.Knows(job.UID) {
		return nil
	}
	token, err := r.token(ctx, job)
	if err != nil {
		return trouble{"TokenUnusable", err}
	}
	name := types.NamespacedName{Namespace: job.Namespace, Name: job.Name}
	r.masters.Open(job.UID, name, link.Master{Address: elasticjob.MasterAddress(job), Token: token})
	return nil
}

// keepToken puts the secret back that somebody has deleted under a job that trains: pods that it is given now would not
// start. The job's programs know each other by the token that was in it.
func (r *JobReconciler) keepToken(ctx context.Context, job *v1alpha1.ElasticJob) error {
	token := r.masters.Token(job.UID)
	if token == "" || !begun(job) {
		return nil
	}
	key := types.NamespacedName{Namespace: job.Namespace, Name: elasticjob.TokenSecret(job.Name)}
	err := r.server.Get(ctx, key, &corev1.Secret{})
	if err == nil {
		return nil
	}
	if !apierrors.IsNotFound(err) {
		return trouble{"TokenUnusable", fmt.Errorf("the job's token, secret %s: %w", key.Name, err)}
	}
	log.FromContext(ctx).Info("putting the job's token back", "secret", key.String())
	if err := r.client.Create(ctx, elasticjob.Token(job, token)); err != nil && !apierrors.IsAlreadyExists(err) {
		return trouble{"TokenUnusable", fmt.Errorf("putting secret %s back: %w", key.Name, err)}
	}
	return nil
}

// begun says that pods of the job know each other by a token.
func begun(job *v1alpha1.ElasticJob) bool {
	for _, role := range job.Status.Roles {
		if role.Started > 0 {
			return true
		}
	}
	return false
}

// token reads the job's, and makes one for a job that has not begun.
func (r *JobReconciler) token(ctx context.Context, job *v1alpha1.ElasticJob) (string, error) {
	secret := &corev1.Secret{}
	key := types.NamespacedName{Namespace: job.Namespace, Name: elasticjob.TokenSecret(job.Name)}
	err := r.server.Get(ctx, key, secret)
	if apierrors.IsNotFound(err) {
		if begun(job) {
			return "", fmt.Errorf("secret %s is gone, and the job's pods know each other by it; put it back, or suspend the "+
				"job and resume it: it gets a new one", key.Name)
		}
		var random [16]byte
		rand.Read(random[:]) // never fails
		secret = elasticjob.Token(job, hex.EncodeToString(random[:]))
		err = r.client.Create(ctx, secret)
		if apierrors.IsAlreadyExists(err) {
			return "", fmt.Errorf("secret %s was made meanwhile: %w", key.Name, err)
		}
	}
	if err != nil {
		return "", fmt.Errorf("the job's token, secret %s: %w", key.Name, err)
	}
	if owner := v1alpha1.OwnerUID(secret); owner != job.UID {
		return "", fmt.Errorf("secret %s belongs to something else than this job; expected it to go with its owner", key.Name)
	}
	token := string(secret.Data[elasticjob.TokenKey])
	if token == "" {
		return "", fmt.Errorf("secret %s has no %q; expected the job's token there", key.Name, elasticjob.TokenKey)
	}
	return token, nil
}

// tell gives the job's master all that it is to know.
func (r *JobReconciler) tell(job *v1alpha1.ElasticJob, pods []engine.Pod, desired engine.Desired, plan plan,
	now time.Time) {
	wish := &platformpb.PlatformView{WantedNodes: uint32(desired.Replicas(v1alpha1.ReplicaTypeWorker))}
	named := map[string]bool{}
	add := func(pod *engine.Pod, why string, at time.Time) {
		if pod.Role != v1alpha1.ReplicaTypeWorker || pod.Address == "" || named[pod.UID] {
			return
		}
		named[pod.UID] = true
		wish.Departures = append(wish.Departures, &platformpb.Departure{
			Address: pod.Address, Name: pod.Name, Reason: why, LeftMs: max(0, at.Sub(now).Milliseconds()),
		})
	}
	for i := range pods {
		if why, at, goes := pods[i].Goes(); goes {
			add(&pods[i], why, at)
		}
	}
	for i := range plan.drains {
		add(&plan.drains[i].Pod, plan.drains[i].Reason, plan.drains[i].Until)
	}
	// It may have done without some of them already: that holds, until the cluster shows that they leave.
	for i := range plan.deletes {
		if pod := &plan.deletes[i].Pod; pod.Live() && pod.State == engine.Running {
			add(pod, plan.deletes[i].Reason, now)
		}
	}
	wish.Places = r.places(pods)
	wish.MasterEpoch = newestMaster(pods)
	r.masters.Tell(job.UID, wish)
}

// newestMaster is the id of the newest master that is ready; nil: none is. One that is leaving a node that does not
// answer may work on there, and hold the link and the nodes that are connected to it: it is to make room.
func newestMaster(pods []engine.Pod) *uint32 {
	var newest *uint32
	for i := range pods {
		pod := &pods[i]
		if pod.Role != v1alpha1.ReplicaTypeMaster || !pod.Ready || !pod.Live() {
			continue
		}
		if id := uint32(pod.ID); newest == nil || id > *newest {
			newest = &id
		}
	}
	return newest
}

// places are those of live pods under switches that the administrator has written down.
func (r *JobReconciler) places(pods []engine.Pod) []*platformpb.NodePlace {
	if r.switches == nil || r.switches.Table().Nodes() == 0 {
		return nil
	}
	table := r.switches.Table()
	var places []*platformpb.NodePlace
	for i := range pods {
		pod := &pods[i]
		place, _, known := table.Find(pod.HostAddresses...)
		if !known || pod.Role != v1alpha1.ReplicaTypeWorker || pod.Address == "" || !pod.Live() {
			continue
		}
		places = append(places, &platformpb.NodePlace{
			Address: pod.Address, PodSwitch: uint32(place.PodGroup + 1), AccessSwitch: uint32(place.Group + 1),
		})
	}
	// The same places are to be the same message, in whatever order the cache lists pods.
	slices.SortFunc(places, func(a, b *platformpb.NodePlace) int { return cmp.Compare(a.GetAddress(), b.GetAddress()) })
	return places
}

// drain notes which pods the master is told to do without, and since when. Those that are deleted now are still among
// them: where that is refused, their time does not begin anew.
func (r *JobReconciler) drain(job *v1alpha1.ElasticJob, plan plan, now time.Time) {
	var pods []types.UID
	for i := range plan.drains {
		pods = append(pods, ownUID(plan.drains[i].Pod))
	}
	for i := range plan.deletes {
		if !plan.deletes[i].Pod.DrainSince.IsZero() {
			pods = append(pods, ownUID(plan.deletes[i].Pod))
		}
	}
	r.ledger.drained(job.UID, pods, now)
}

// hear adds to what the cluster shows of pods what the job's master says of them. nil: it is not heard.
func (r *JobReconciler) hear(job *v1alpha1.ElasticJob, pods []engine.Pod) *elasticjob.Told {
	view, current := r.masters.View(job.UID)
	if view == nil && !elasticjob.MasterAnswers(job) {
		return nil
	}
	released := map[string]bool{}
	for _, address := range view.GetReleased() {
		released[address] = current // of an older wish it says nothing about this one
	}
	unfit := map[string]string{} // by host name: a node may have told the master an address that the cluster does not know
	for _, node := range view.GetUnfit() {
		unfit[node.GetHostname()] = node.GetReason()
	}
	for i := range pods {
		pod := &pods[i]
		if pod.Role != v1alpha1.ReplicaTypeWorker || pod.Address == "" {
			continue
		}
		pod.Answered, pod.Released = true, released[pod.Address]
		pod.Unfit = cmp.Or(unfit[pod.Name], unfit[pod.Host]) // of a pod in its host's network it is the host's
		pod.DrainSince = r.ledger.drainSince(job.UID, types.UID(pod.UID))
	}
	if view == nil {
		return nil
	}
	return &elasticjob.Told{World: int64(view.GetWorldSize()), Step: view.Step}
}
