package link

import (
	"context"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// A master that is not there is dialled again after so long, twice as long each time.
	redialMin = 100 * time.Millisecond
	redialMax = 10 * time.Second
	// One that is expected is dialled no later than so: what it does first depends on what it is told.
	redialSoon = time.Second
	// expectedFor is how long a master is expected behind whatever has happened to its job, or its own last word.
	expectedFor = 2 * time.Minute
	// A master that another platform has taken is left to it for so long, twice as long each time: two that do not know
	// of each other would else take it from each other all the time, and each time the job is told another wish.
	replacedMin = 10 * time.Second
	replacedMax = 160 * time.Second
)

// redial is how long to wait until a job's master is dialled again. The zero one is that of a job that was not dialled.
type redial struct {
	wait     time.Duration
	replaced time.Duration // zero: no other platform has taken the master
}

// failed notes how a try has ended. attached: the master had answered.
func (r *redial) failed(attached bool, err error) {
	switch {
	case status.Code(err) == codes.Aborted:
		r.replaced = min(max(2*r.replaced, replacedMin), replacedMax)
	case attached:
		r.wait, r.replaced = redialMin, 0
	default:
		r.wait = min(max(2*r.wait, redialMin), redialMax)
	}
}

// pause is how long to wait from the end of that try. share is a random number of [0, 1), so that a thousand jobs of
// one operator do not dial in one moment.
func (r *redial) pause(expected bool, share float64) time.Duration {
	if r.replaced > 0 {
		return r.replaced + time.Duration(share*float64(r.replaced/2))
	}
	most := redialMax
	if expected {
		most = redialSoon
	}
	least := min(r.wait, most) / 2
	return least + time.Duration(share*float64(least))
}

// rest waits until the master is to be dialled again. What happens to the job meanwhile may bring that nearer.
func (l *Links) rest(ctx context.Context, e *entry, next *redial) {
	began, share := time.Now(), rand.Float64()
	for {
		left := time.NewTimer(time.Until(began.Add(next.pause(l.expects(e), share))))
		select {
		case <-ctx.Done():
		case <-left.C:
		case <-e.stirred:
			left.Stop()
			continue
		}
		left.Stop()
		return
	}
}

func (l *Links) expects(e *entry) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Since(e.happened) < expectedFor
}
