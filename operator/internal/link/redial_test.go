package link

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	"phalanx/operator/internal/link/platformpb"
)

func TestRedial(t *testing.T) {
	gone, replaced := errors.New("connection refused"), status.Error(codes.Aborted, "the platform has come again")
	type try struct {
		attached bool
		err      error
	}
	never := func(tries int) []try { return slices.Repeat([]try{{false, gone}}, tries) }
	const ms, s = time.Millisecond, time.Second
	cases := map[string]struct {
		tries    []try
		expected bool
		want     [2]time.Duration // with the least and the greatest share
	}{
		"the first":                {never(1), true, [2]time.Duration{50 * ms, 100 * ms}},
		"the third":                {never(3), true, [2]time.Duration{200 * ms, 400 * ms}},
		"an expected one":          {never(60), true, [2]time.Duration{s / 2, s}},
		"the sixth of another":     {never(6), false, [2]time.Duration{1600 * ms, 3200 * ms}},
		"a later one of another":   {never(60), false, [2]time.Duration{5 * s, 10 * s}},
		"a stream is over":         {append(never(9), try{true, nil}), false, [2]time.Duration{50 * ms, 100 * ms}},
		"replaced":                 {[]try{{true, replaced}}, true, [2]time.Duration{10 * s, 15 * s}},
		"replaced unheard":         {[]try{{false, replaced}}, true, [2]time.Duration{10 * s, 15 * s}},
		"replaced, not there":      {[]try{{true, replaced}, {false, gone}}, true, [2]time.Duration{10 * s, 15 * s}},
		"replaced again":           {[]try{{true, replaced}, {true, replaced}}, true, [2]time.Duration{20 * s, 30 * s}},
		"replaced each time":       {slices.Repeat([]try{{true, replaced}}, 60), true, [2]time.Duration{160 * s, 240 * s}},
		"replaced, and over since": {[]try{{true, replaced}, {true, gone}}, true, [2]time.Duration{50 * ms, 100 * ms}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var r redial
			for _, try := range tc.tries {
				r.failed(try.attached, try.err)
			}
			if got := [2]time.Duration{r.pause(tc.expected, 0), r.pause(tc.expected, 1)}; got != tc.want {
				t.Errorf("it waits from %v to %v, want %v", got[0], got[1], tc.want)
			}
		})
	}
}

// dials are the moments at which somebody has dialled.
type dials struct {
	mu sync.Mutex
	at []time.Time
}

func (d *dials) refuse(context.Context, string) (net.Conn, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.at = append(d.at, time.Now())
	return nil, errors.New("connection refused")
}

// until now.
func (d *dials) until() []time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.at)
}

// gaps are the longest and the shortest time between two dials of a span.
func (d *dials) gaps(from, to time.Time) (longest, shortest time.Duration) {
	shortest = to.Sub(from)
	all := d.until()
	for i, at := range all {
		if i > 0 && at.After(from) && at.Before(to) {
			longest, shortest = max(longest, at.Sub(all[i-1])), min(shortest, at.Sub(all[i-1]))
		}
	}
	return longest, shortest
}

// A master that starts while it is expected is met within a second; another within ten. What happens to a job makes its
// master expected again.
func TestAnExpectedMasterIsMetSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(t.Context(), Self{Version: "test"}, func(types.NamespacedName) {})
		var d dials
		l.dial = d.refuse
		began := time.Now()
		l.Open("uid", types.NamespacedName{}, Master{})
		time.Sleep(10 * time.Minute)
		if longest, _ := d.gaps(began, began.Add(expectedFor)); longest > redialSoon {
			t.Errorf("a new job's master is dialled after %v", longest)
		}
		later := began.Add(expectedFor + redialMax)
		if longest, shortest := d.gaps(later, time.Now()); longest > redialMax || shortest < redialMax/4 {
			t.Errorf("later it is dialled after %v to %v", shortest, longest)
		}
		l.Tell("uid", &platformpb.PlatformView{WantedNodes: 1})
		told := time.Now()
		time.Sleep(redialSoon)
		synctest.Wait()
		if all := d.until(); !all[len(all)-1].After(told) {
			t.Errorf("the master of a job to which something has happened is not dialled within %v", redialSoon)
		}
		time.Sleep(expectedFor)
		if longest, _ := d.gaps(told.Add(redialSoon), told.Add(expectedFor)); longest > redialSoon {
			t.Errorf("of a job to which something has happened it is dialled after %v", longest)
		}
	})
}

func TestManyJobsDoNotDialTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(t.Context(), Self{Version: "test"}, func(types.NamespacedName) {})
		var d dials
		l.dial = d.refuse
		const jobs = 1000
		for i := range jobs {
			l.Open(types.UID(fmt.Sprint(i)), types.NamespacedName{}, Master{})
		}
		began := time.Now()
		time.Sleep(20 * time.Second)
		synctest.Wait()
		in := map[time.Duration]int{}
		for _, at := range d.until() {
			in[at.Sub(began)/(100*time.Millisecond)]++
		}
		for span, count := range in {
			if span > 50 && count > jobs/3 {
				t.Errorf("%d dials in the %d-th tenth of a second", count, span)
			}
		}
	})
}
