//go:build master

// Package link runs the operator's side of PlatformLink against a real phalanx-master: the one of PHALANX_MASTER, else
// of build/release.
package link

import (
	"bufio"
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"phalanx/operator/internal/link"
	"phalanx/operator/internal/link/platformpb"
)

const (
	token    = "3f1c9a5be07d24681357bd90aa44ce21"
	patience = 30 * time.Second
)

var job = types.NamespacedName{Namespace: "team", Name: "fine-tuning"}

func TestMain(m *testing.M) {
	log.SetLogger(zap.New(zap.WriteTo(os.Stderr)))
	os.Exit(m.Run())
}

// master is a process of phalanx-master.
type master struct {
	command *exec.Cmd
	port    string
}

func startMaster(t *testing.T, folder, port string) *master {
	t.Helper()
	program := cmp.Or(os.Getenv("PHALANX_MASTER"), "../../../build/release/bin/phalanx-master")
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	command := exec.Command(program, "--host=127.0.0.1", "--port="+port, "--spec-from-hello", "--resume", "--ready-fd=3",
		"--state-dir="+filepath.Join(folder, "job"))
	command.Env = append(os.Environ(), "PHALANX_TOKEN="+token)
	command.ExtraFiles = []*os.File{write}
	if err := command.Start(); err != nil {
		t.Fatalf("%v; ./run build makes phalanx-master", err)
	}
	write.Close()
	m := &master{command: command}
	t.Cleanup(m.kill)
	line, err := bufio.NewReader(read).ReadString('\n')
	word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
	if err != nil || word != "ready" {
		t.Fatalf("the master says %q: %v", line, err)
	}
	m.port = rest
	return m
}

func (m *master) kill() {
	if m.command.ProcessState == nil {
		m.command.Process.Kill() //nolint:errcheck // it may have ended
		m.command.Wait()         //nolint:errcheck // it was killed
	}
}

// links is a set with a channel that holds a token when a view has changed.
func links(t *testing.T) (*link.Links, chan struct{}) {
	t.Helper()
	changed := make(chan struct{}, 1)
	made := link.New(t.Context(), "test", func(types.NamespacedName) {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	return made, changed
}

// await waits until is says nothing.
func await(t *testing.T, changed chan struct{}, is func() string) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		missing := is()
		if missing == "" {
			return
		}
		select {
		case <-changed:
		case <-deadline.C:
			t.Fatalf("after %v: %s", patience, missing)
		}
	}
}

func answered(l *link.Links, generation uint64) func() string {
	return func() string {
		view, current := l.View("uid")
		if !current || view.GetGeneration() < generation {
			return fmt.Sprintf("the master has answered %d", view.GetGeneration())
		}
		return ""
	}
}

// The master takes the operator by its certificate, answers each wish, and hears all of it again when it is started
// anew.
func TestWhatIsWantedOutlivesTheMaster(t *testing.T) {
	folder := t.TempDir()
	first := startMaster(t, folder, "0")
	l, changed := links(t)
	l.Open("uid", job, link.Master{Address: "127.0.0.1:" + first.port, Token: token})
	l.Tell("uid", &platformpb.PlatformView{WantedNodes: 4, Departures: []*platformpb.Departure{
		{Address: "10.0.0.7", Name: "worker-1", Reason: "preempted", LeftMs: 30_000},
	}})
	await(t, changed, answered(l, 1))
	view, _ := l.View("uid")
	if view.GetPhase() != "gathering" || len(view.GetReleased()) != 1 {
		t.Errorf("the master tells %v", view)
	}

	first.kill()
	await(t, changed, func() string {
		if view, _ := l.View("uid"); view != nil {
			return "a dead master is believed"
		}
		return ""
	})
	startMaster(t, folder, first.port)
	await(t, changed, func() string {
		if view, current := l.View("uid"); !current || len(view.GetReleased()) != 1 {
			return fmt.Sprintf("the new master tells %v", view)
		}
		return ""
	})
}

// Who has another token is not heard, and hears nothing.
func TestAnotherTokenIsRefused(t *testing.T) {
	m := startMaster(t, t.TempDir(), "0")
	l, _ := links(t)
	l.Open("uid", job, link.Master{Address: "127.0.0.1:" + m.port, Token: strings.Repeat("0", 32)})
	right, changed := links(t)
	right.Open("uid", job, link.Master{Address: "127.0.0.1:" + m.port, Token: token})
	right.Tell("uid", &platformpb.PlatformView{WantedNodes: 1})
	await(t, changed, answered(right, 1))
	if view, _ := l.View("uid"); view != nil {
		t.Errorf("the master tells a stranger %v", view)
	}
}

// The second of two operators takes the first one's place, as after a change of leaders.
func TestTheNewestOperatorCounts(t *testing.T) {
	m := startMaster(t, t.TempDir(), "0")
	old, changedOld := links(t)
	where := link.Master{Address: "127.0.0.1:" + m.port, Token: token}
	old.Open("uid", job, where)
	old.Tell("uid", &platformpb.PlatformView{WantedNodes: 1})
	await(t, changedOld, answered(old, 1))
	fresh, changed := links(t)
	fresh.Open("uid", job, where)
	fresh.Tell("uid", &platformpb.PlatformView{WantedNodes: 2})
	await(t, changedOld, func() string {
		if view, _ := old.View("uid"); view != nil {
			return "the old one is still told"
		}
		old.Close("uid") // it has heard that it is no leader any more
		return ""
	})
	await(t, changed, answered(fresh, 1))
}
