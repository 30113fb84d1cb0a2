//go:build apiserver

package apiserver

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/fsnotify/fsnotify"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"phalanx/operator/api/v1alpha1"
)

// trainer makes steps of a sum over all ranks until a file says that it is enough. It goes on from the step that rank 0
// has written last, as a script with checkpoints does.
const trainer = `
import os, sys, time
import torch, torch.distributed as dist
import phalanx
folder = sys.argv[1]
dist.init_process_group("gloo")
path = os.path.join(folder, "step")
step = int(open(path).read()) if os.path.exists(path) else 0
while not os.path.exists(os.path.join(folder, "enough")):
    ones = torch.ones(4)
    dist.all_reduce(ones)
    assert ones[0] == dist.get_world_size()
    step += 1
    phalanx.step(step)
    if dist.get_rank() == 0:
        with open(path + ".new", "w") as file:
            file.write(str(step))
        os.replace(path + ".new", path)
    time.sleep(0.05)
    go_on = torch.tensor([1 if os.path.exists(os.path.join(folder, "enough")) else 0])
    dist.all_reduce(go_on)
    if go_on.item():
        break
`

// training is a job whose pods really train.
type training struct {
	*stage
	pods   *processes
	folder string
}

func startTraining(t *testing.T, workers int32) *training {
	t.Helper()
	build := cmp.Or(os.Getenv("PHALANX_BUILD"), "../../../build/release/bin")
	build, err := filepath.Abs(build)
	if err != nil {
		t.Fatal(err)
	}
	python, err := filepath.Abs(cmp.Or(os.Getenv("PHALANX_VENV"), "../../../.venv/bin"))
	if err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{filepath.Join(build, "phalanx-master"), filepath.Join(python, "phalanx-run")} {
		if _, err := os.Stat(program); err != nil {
			t.Fatalf("%v; ./run build makes it", err)
		}
	}
	s := newStage(t)
	path := strings.Join([]string{python, build, "/usr/bin", "/bin", "/usr/sbin", "/sbin"}, ":")
	tr := &training{s, startProcesses(s, path), t.TempDir()}
	tr.pods.serve("elasticjob-t-dlrover-master", 50001)
	startOperator(t, seeing(tr.pods.hosts))
	script := filepath.Join(tr.folder, "train.py")
	if err := os.WriteFile(script, []byte(trainer), 0o644); err != nil {
		t.Fatal(err)
	}
	job := simpleJob("t", workers)
	delete(job.Spec.ReplicaSpecs, v1alpha1.ReplicaTypeMaster) // Phalanx's
	worker := job.Spec.ReplicaSpecs[v1alpha1.ReplicaTypeWorker]
	worker.Template.Spec.TerminationGracePeriodSeconds = ptr.To[int64](10)
	const launch = "%s; exec phalanx-run $id --nnodes=1:$NODE_NUM --nproc-per-node=1 %s %s"
	worker.Template.Spec.Containers[0].Command = []string{
		"/bin/bash", "-c", fmt.Sprintf(launch, sayWho, script, tr.folder),
	}
	tr.create(job)
	tr.watchSteps()
	return tr
}

// sayWho has every other worker give the job an id, as dlrover-run does by ELASTIC_JOB_NAME.
const sayWho = "((NODE_RANK % 2)) && id=--rdzv-id=$ELASTIC_JOB_NAME"

// watchSteps has what waits look again when a step was written.
func (tr *training) watchSteps() {
	tr.t.Helper()
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		tr.t.Fatal(err)
	}
	tr.t.Cleanup(func() { watcher.Close() })
	if err := watcher.Add(tr.folder); err != nil {
		tr.t.Fatal(err)
	}
	go func() {
		for range watcher.Events {
			tr.ring()
		}
	}()
}

// seeing has the operator look names up in that hosts file.
func seeing(hosts string) func(*exec.Cmd) {
	return func(command *exec.Cmd) {
		const seen = `mount --bind "$1" /etc/hosts; shift; exec "$@"`
		command.Args = append([]string{"unshare", "--mount", "/bin/sh", "-c", seen,
			"operator", hosts, command.Path}, command.Args[1:]...)
		command.Path = "/usr/bin/unshare"
	}
}

// step is the last that rank 0 has written.
func (tr *training) step() int64 {
	text, err := os.ReadFile(filepath.Join(tr.folder, "step"))
	if err != nil {
		return 0
	}
	step, _ := strconv.ParseInt(string(text), 10, 64)
	return step
}

// world says what is missing until the master says that so many ranks train, and they have made a step since.
func (tr *training) world(ranks int64, since int64) func() error {
	return func() error {
		status := tr.job("t").Status
		if status.World == nil || *status.World != ranks {
			return fmt.Errorf("the world is %v, step %d", ptr.Deref(status.World, -1), tr.step())
		}
		if tr.step() <= since {
			return fmt.Errorf("%d ranks, and still step %d", ranks, tr.step())
		}
		return nil
	}
}

func (tr *training) workers() []corev1.Pod {
	var pods []corev1.Pod
	for _, pod := range tr.live(v1alpha1.ReplicaTypeWorker) {
		pods = append(pods, pod)
	}
	slices.SortFunc(pods, func(a, b corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	return pods
}

// From ElasticJob to steps of training, with all that may happen on the way. Only the API server's clients know that
// there are no machines.
func TestTraining(t *testing.T) {
	tr := startTraining(t, 3)
	tr.await(tr.world(3, 5))

	t.Log("a worker's machine is lost")
	before := tr.step()
	victim := tr.workers()[1]
	tr.pods.of(victim).kill()
	tr.await(func() error {
		if pods := tr.workers(); len(pods) != 3 || pods[2].Name != "t-edljob-worker-3" {
			return fmt.Errorf("%d workers, and none is t-edljob-worker-3", len(pods))
		}
		return nil
	})
	before = max(before, tr.step()) // the status may still be that of before the loss
	tr.await(tr.world(3, before+5))

	t.Log("the job is made smaller: its master does without a rank before the pod goes")
	before = tr.step()
	tr.patch(tr.job("t"), `{"spec":{"replicaSpecs":{"worker":{"replicas":2}}}}`)
	tr.await(tr.world(2, before+5))
	tr.await(func() error {
		if pods := tr.workers(); len(pods) != 2 {
			return fmt.Errorf("%d pods", len(pods))
		}
		return nil
	})
	if restarts := tr.job("t").Status.Restarts; restarts != 1 {
		t.Errorf("%d restarts: a pod that was drained is no failure", restarts)
	}

	t.Log("and larger, by more than it began with")
	before = tr.step()
	tr.patch(tr.job("t"), `{"spec":{"replicaSpecs":{"worker":{"replicas":4}}}}`)
	tr.await(tr.world(4, before+5))

	t.Log("a pod is preempted: it trains no more while it is still there")
	preempted := tr.workers()[3]
	preempted.Status.Conditions = append(preempted.Status.Conditions, corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "PreemptionByScheduler",
	})
	if err := cluster.client.Status().Update(context.Background(), &preempted); err != nil {
		t.Fatal(err)
	}
	tr.await(tr.world(3, before+5))
	if pod := tr.live(v1alpha1.ReplicaTypeWorker)[preempted.Name]; pod.UID != preempted.UID {
		t.Errorf("%s is gone already", preempted.Name)
	}
	if err := cluster.client.Delete(context.Background(), &preempted); err != nil {
		t.Fatal(err)
	}
	before = tr.step()
	tr.await(tr.world(4, before+5))

	t.Log("the master's machine is lost: ranks train on, and its successor knows them")
	trained := tr.workers()
	before = tr.step()
	for _, master := range tr.live(v1alpha1.ReplicaTypeMaster) {
		tr.pods.of(master).kill()
	}
	tr.await(func() error {
		for name := range tr.live(v1alpha1.ReplicaTypeMaster) {
			if name == "elasticjob-t-dlrover-master-1" {
				return nil
			}
		}
		return fmt.Errorf("no new master")
	})
	tr.await(tr.world(4, before+5))
	for i, pod := range tr.workers() {
		if pod.UID != trained[i].UID {
			t.Errorf("%s was replaced by %s for its master's sake", trained[i].Name, pod.Name)
		}
	}

	t.Log("all workers are deleted at once: the job waits for others")
	trained = tr.workers()
	for i := range trained {
		if err := cluster.client.Delete(context.Background(), &trained[i]); err != nil {
			t.Fatal(err)
		}
	}
	tr.await(func() error {
		workers := tr.workers()
		old := func(pod corev1.Pod) bool {
			return slices.ContainsFunc(trained, func(before corev1.Pod) bool { return before.UID == pod.UID })
		}
		if len(workers) != 4 || slices.ContainsFunc(workers, old) {
			return fmt.Errorf("%d workers, some of them as before", len(workers))
		}
		return nil
	})
	before = tr.step()
	tr.await(tr.world(4, before+5))
	if phase := tr.job("t").Status.Phase; phase != v1alpha1.PhaseRunning {
		t.Errorf("phase %s", phase)
	}

	t.Log("the job comes to its end")
	if err := os.WriteFile(filepath.Join(tr.folder, "enough"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	tr.await(func() error {
		if phase := tr.job("t").Status.Phase; phase != v1alpha1.PhaseSucceeded {
			return fmt.Errorf("phase %s", phase)
		}
		return nil
	})
}
