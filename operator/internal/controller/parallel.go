package controller

import (
	"context"
	"sync"
)

// maxInFlight is how many requests of one job are under way at a time.
const maxInFlight = 50

// slowStart calls do for 0 to count-1, first for so many, then for twice as many at a time up to maxInFlight, so that a
// request that none of them can win (a quota, a webhook) is sent a few times and not count times. It stops behind the
// first failures and returns one of them, with how many calls have succeeded.
func slowStart(ctx context.Context, first, count int, do func(ctx context.Context, index int) error) (int, error) {
	begun, succeeded := 0, 0
	for batch := first; begun < count; batch *= 2 {
		size := min(batch, count-begun)
		if batch > maxInFlight {
			size = count - begun
		}
		done, err := inParallel(ctx, begun, size, do)
		begun, succeeded = begun+size, succeeded+done
		if err != nil {
			return succeeded, err
		}
	}
	return succeeded, nil
}

// inParallel calls do for first to first+size-1, maxInFlight at a time. Calls that have not begun when one fails, or
// when the context ends, are left out.
func inParallel(ctx context.Context, first, size int, do func(ctx context.Context, index int) error) (int, error) {
	var (
		wait      sync.WaitGroup
		mu        sync.Mutex
		failure   error
		succeeded int
		next      = first
	)
	take := func() (int, bool) {
		mu.Lock()
		defer mu.Unlock()
		if failure == nil {
			failure = ctx.Err()
		}
		if failure != nil || next == first+size {
			return 0, false
		}
		next++
		return next - 1, true
	}
	work := func() {
		for index, more := take(); more; index, more = take() {
			err := do(ctx, index)
			mu.Lock()
			if err == nil {
				succeeded++
			} else if failure == nil {
				failure = err
			}
			mu.Unlock()
		}
	}
	for range min(size, maxInFlight) {
		wait.Go(work)
	}
	wait.Wait()
	return succeeded, failure
}
