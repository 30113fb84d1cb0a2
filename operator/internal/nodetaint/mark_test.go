package nodetaint

import (
	"encoding/json"
	"testing"
	"time"
)

var noon = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

func blameOf(job string, hours int) Blame {
	return Blame{job, "sector 7 is gone", noon.Add(time.Duration(hours) * time.Hour)}
}

func markOf(t *testing.T, blame Blame) string {
	t.Helper()
	text, err := json.Marshal(blame)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestDecide(t *testing.T) {
	one, long, over := blameOf("ns/a", 1), blameOf("ns/b", 24), blameOf("ns/a", -1)
	cases := map[string]struct {
		mark   string
		blames []Blame
		want   Change
		by     Blame
		at     time.Time
	}{
		"nobody says anything":            {want: Keep},
		"a job blames it":                 {blames: []Blame{one}, want: Taint, by: one, at: one.Until},
		"the longest blame counts":        {blames: []Blame{one, long, over}, want: Taint, by: long, at: long.Until},
		"one that is over is none":        {blames: []Blame{over}, want: Keep},
		"it is known":                     {mark: markOf(t, one), blames: []Blame{one}, by: one, at: one.Until},
		"the job is gone, its word holds": {mark: markOf(t, one), by: one, at: one.Until},
		"another job blames it for longer": {
			mark: markOf(t, one), blames: []Blame{long}, want: Taint, by: long, at: long.Until,
		},
		"somebody has taken the taint off": {mark: markOf(t, one), blames: []Blame{one}, by: one, at: one.Until},
		"its time is over":                 {mark: markOf(t, over), want: Clear, by: over},
		"a mark that cannot be read":       {mark: "{", want: Clear},
		"its time is over and it is blamed anew": {
			mark: markOf(t, over), blames: []Blame{one}, want: Taint, by: one, at: one.Until,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, by, at := Decide(tc.mark, tc.blames, noon)
			if got != tc.want || by.Job != tc.by.Job || !by.Until.Equal(tc.by.Until) || !at.Equal(tc.at) {
				t.Errorf("%v by %v at %v, want %v by %v at %v", got, by, at, tc.want, tc.by, tc.at)
			}
		})
	}
}
