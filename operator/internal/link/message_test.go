package link

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"phalanx/operator/internal/link/platformpb"
)

// Whatever somebody puts into a message, it can be sent.
func TestTextsAreLegible(t *testing.T) {
	l, e := withoutStream(t)
	cut := "显存不足"[:10] + "..." // in the middle of a character
	l.Tell("uid", &platformpb.PlatformView{
		Departures: []*platformpb.Departure{{Address: cut, Name: cut, Reason: cut}},
		Places:     []*platformpb.NodePlace{{Address: cut}},
	})
	l.Report("uid", &platformpb.PlatformFact{Name: cut, Address: cut, Kind: cut, Sentence: cut})
	for _, message := range []proto.Message{e.wish, e.facts[0]} {
		if _, err := proto.Marshal(message); err != nil {
			t.Error(err)
		}
	}
	if got := e.facts[0].GetSentence(); got != "显存不\uFFFD..." {
		t.Errorf("it became %q", got)
	}
}

func TestLongTextsAreCut(t *testing.T) {
	if got := legibleText(strings.Repeat("不", 1000)); got != strings.Repeat("不", mostTextBytes/3) {
		t.Errorf("%d bytes, which end with %q", len(got), got[len(got)-6:])
	}
	if short := strings.Repeat("a", mostTextBytes); legibleText(short) != short {
		t.Error("a short one was cut")
	}
}

// viewOf has so many departures with reasons, and so many places.
func viewOf(departures, places int) *platformpb.PlatformView {
	view := &platformpb.PlatformView{Generation: 7, WantedNodes: 4}
	for i := range departures {
		view.Departures = append(view.Departures, &platformpb.Departure{
			Address: fmt.Sprint("10.0.0.", i), Name: fmt.Sprint("worker-", i), Reason: strings.Repeat("r", 400), LeftMs: 30_000,
		})
	}
	for i := range places {
		view.Places = append(view.Places, &platformpb.NodePlace{
			Address: fmt.Sprint("10.1.0.", i), PodSwitch: 1, AccessSwitch: uint32(i),
		})
	}
	return view
}

// What one message has no room for is left out, places first, and no more than has to be.
func TestAViewFitsIntoAMessage(t *testing.T) {
	cases := map[string]struct {
		departures, places int
		left               string
		reasons, all       bool // are there still: why nodes go, all departures
	}{
		"small":           {100, 1000, "", true, true},
		"places":          {100, 80_000, "places in the network", true, true},
		"both":            {2000, 30_000, "places in the network", true, true},
		"reasons":         {8000, 10, "places in the network, and why nodes go", false, true},
		"departures":      {80_000, 10, "places in the network, why nodes go, and some that go", false, false},
		"departures only": {80_000, 0, "places in the network, why nodes go, and some that go", false, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			view := viewOf(tc.departures, tc.places)
			if left := fit(view); left != tc.left {
				t.Errorf("left out: %q, want %q", left, tc.left)
			}
			size := proto.Size(view)
			if size > mostViewBytes || tc.left != "" && tc.reasons && size < mostViewBytes-100 {
				t.Errorf("%d bytes", size)
			}
			if got := view.Departures[0].GetReason() != ""; got != tc.reasons {
				t.Errorf("reasons: %v", got)
			}
			if got := len(view.Departures) == tc.departures; got != tc.all {
				t.Errorf("%d departures of %d", len(view.Departures), tc.departures)
			}
		})
	}
}
