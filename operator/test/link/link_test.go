//go:build master

// Package link runs the operator's side of PlatformLink against a real phalanx-master: the one of PHALANX_MASTER, else
// of build/release.
package link

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"phalanx/operator/internal/link"
	"phalanx/operator/internal/link/platformpb"
	"phalanx/operator/test/ports"
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

func masterProgram() string {
	return cmp.Or(os.Getenv("PHALANX_MASTER"), "../../../build/release/bin/phalanx-master")
}

func startMaster(t *testing.T, folder, port string, env ...string) *master {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	command := exec.Command(masterProgram(), "--host=127.0.0.1", "--port="+port, "--spec-from-hello", "--resume",
		"--ready-fd=3", "--state-dir="+filepath.Join(folder, "job"))
	command.Env = append(append(os.Environ(), "PHALANX_TOKEN="+token), env...)
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

// links is a set of an operator that nobody counts.
func links(t *testing.T) (*link.Links, chan struct{}) {
	t.Helper()
	return linksOf(t.Context(), 0)
}

// linksOf is a set with a channel that holds a token when a view has changed.
func linksOf(ctx context.Context, number uint64) (*link.Links, chan struct{}) {
	turn := func(context.Context) (link.Turn, error) { return link.Turn{Lease: "lease-1", Epoch: number}, nil }
	changed := make(chan struct{}, 1)
	made := link.New(ctx, link.Self{Version: "test", Turn: turn}, func(types.NamespacedName) {
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
	if view.GetPhase() != "gathering" || len(view.GetReleased()) != 0 {
		t.Errorf("a master that has met no node tells %v", view)
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
		if view, current := l.View("uid"); !current {
			return fmt.Sprintf("the new master tells %v", view)
		}
		return ""
	})
}

// Who has another token is not heard, and hears nothing.
// A master that hears of a later one that is ready ends, and is no failure of the job; the operator's next stream leads
// to that one.
func TestAMasterMakesRoomForALaterOne(t *testing.T) {
	first := startMaster(t, t.TempDir(), "0", "MASTER_EPOCH=3")
	l, changed := links(t)
	l.Open("uid", job, link.Master{Address: "127.0.0.1:" + first.port, Token: token})
	wish := func(epoch uint32) { l.Tell("uid", &platformpb.PlatformView{WantedNodes: 4, MasterEpoch: &epoch}) }
	wish(3)
	await(t, changed, answered(l, 1))
	wish(4)
	err := first.command.Wait()
	if code := first.command.ProcessState.ExitCode(); code != 143 {
		t.Fatalf("it ends with %d: %v", code, err)
	}
	startMaster(t, t.TempDir(), first.port, "MASTER_EPOCH=4")
	await(t, changed, answered(l, 3))
}

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

// The second of two operators takes the first one's place, as after a change of leaders, and keeps it.
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
		return ""
	})
	await(t, changed, answered(fresh, 1))
	for over := time.After(3 * time.Second); over != nil; {
		select {
		case <-changedOld: // it may be news of before
			if view, _ := old.View("uid"); view != nil {
				t.Errorf("the old one has come again, and is told %v", view)
			}
		case <-over:
			over = nil
		}
	}
	if _, current := fresh.View("uid"); !current {
		t.Error("the new one has lost its place")
	}
}

// listener closes a channel when a text comes by.
type listener struct {
	text  string
	heard chan struct{}
	once  sync.Once
}

func (l *listener) Write(text []byte) (int, error) {
	if strings.Contains(string(text), l.text) {
		l.once.Do(func() { close(l.heard) })
	}
	return len(text), nil
}

// An operator that has lost its lease and does not know it yet is not let in beside the one that has it.
func TestAnEarlierOperatorIsNotLetIn(t *testing.T) {
	m := startMaster(t, t.TempDir(), "0")
	where := link.Master{Address: "127.0.0.1:" + m.port, Token: token}
	later, changed := linksOf(t.Context(), 2)
	later.Open("uid", job, where)
	later.Tell("uid", &platformpb.PlatformView{WantedNodes: 2})
	await(t, changed, answered(later, 1))
	refused := make(chan struct{})
	earlier, _ := linksOf(log.IntoContext(t.Context(), zap.New(zap.WriteTo(&listener{
		text: "a later platform runs this job's nodes: its epoch is 2, and this one's 1", heard: refused,
	}))), 1)
	earlier.Open("uid", job, where)
	earlier.Tell("uid", &platformpb.PlatformView{WantedNodes: 1})
	select {
	case <-refused:
	case <-time.After(patience):
		t.Fatal("nobody has refused the earlier one")
	}
	if view, _ := earlier.View("uid"); view != nil {
		t.Errorf("the earlier one is told %v", view)
	}
	if view, _ := later.View("uid"); view == nil {
		t.Error("the later one has lost its place")
	}
	latest, changedLatest := linksOf(t.Context(), 3)
	latest.Open("uid", job, where)
	latest.Tell("uid", &platformpb.PlatformView{WantedNodes: 3})
	await(t, changedLatest, answered(latest, 1))
}

// facts are the sentences of the master's record that a platform has given it.
func facts(t *testing.T, folder string) []string {
	t.Helper()
	program := filepath.Join(filepath.Dir(masterProgram()), "phalanx")
	text, err := exec.Command(program, "events", "--json", "--state-dir="+filepath.Join(folder, "job")).Output()
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	var sentences []string
	for line := range strings.Lines(string(text)) {
		var event struct{ Kind, Reason string }
		if err := json.Unmarshal([]byte(line), &event); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if event.Kind == "platform-fact" {
			sentences = append(sentences, event.Reason)
		}
	}
	return sentences
}

// What has happened while no master was there stands in its record, in order, whatever bytes somebody has put into it.
func TestFactsComeToALaterMaster(t *testing.T) {
	folder := t.TempDir()
	port := strconv.Itoa(ports.Free(t))
	l, changed := links(t)
	l.Open("uid", job, link.Master{Address: "127.0.0.1:" + port, Token: token})
	cut := "显存不足"[:10] // in the middle of a character
	l.Tell("uid", &platformpb.PlatformView{WantedNodes: 4, Departures: []*platformpb.Departure{
		{Address: "10.0.0.7", Name: "worker-1", Reason: cut, LeftMs: 30_000},
	}})
	want := []string{"显存不\uFFFD"}
	l.Report("uid", &platformpb.PlatformFact{Name: "worker-1", Kind: "Relaunched", Sentence: cut})
	for i := range 20 {
		want = append(want, fmt.Sprint("fact ", i))
		l.Report("uid", &platformpb.PlatformFact{Name: "worker-2", Kind: "Relaunched", Sentence: want[i+1]})
	}
	m := startMaster(t, folder, port)
	await(t, changed, answered(l, 1))
	l.Tell("uid", &platformpb.PlatformView{WantedNodes: 5}) // behind all facts
	view, _ := l.View("uid")
	await(t, changed, answered(l, view.GetGeneration()+1))
	m.command.Process.Signal(syscall.SIGTERM) //nolint:errcheck // the record is written to its end
	m.command.Wait()                          //nolint:errcheck // by that signal
	if got := facts(t, folder); !slices.Equal(got, want) {
		t.Errorf("the record has %q", got)
	}
}

// A master hears of a job that is too large for one message what there is room for.
func TestAViewOfTooManyPlacesIsTaken(t *testing.T) {
	m := startMaster(t, t.TempDir(), "0")
	l, changed := links(t)
	l.Open("uid", job, link.Master{Address: "127.0.0.1:" + m.port, Token: token})
	wish := &platformpb.PlatformView{WantedNodes: 4}
	for i := range 80_000 {
		wish.Places = append(wish.Places, &platformpb.NodePlace{
			Address: fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255), PodSwitch: 1, AccessSwitch: uint32(i),
		})
	}
	l.Tell("uid", wish)
	await(t, changed, answered(l, 1))
}
