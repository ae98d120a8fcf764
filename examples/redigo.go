// At most 5 hits in any 60 seconds, with redigo: go run redigo.go [KEY]
package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"
)

// Connections are made as they are needed; one that had an error is not used again.
var pool = &redis.Pool{MaxIdle: 8, Dial: func() (redis.Conn, error) {
	url := os.Getenv("REDIS_URL")
	if url == "" {
		url = "redis://127.0.0.1:6380"
	}
	half := 500 * time.Millisecond
	return redis.DialURL(url, redis.DialConnectTimeout(half), redis.DialReadTimeout(half),
		redis.DialWriteTimeout(half))
}}

// unable has the error replies of a Redis that is away, or can't run hits now.
const unable = " UPSTREAMDOWN LOADING BUSY OOM READONLY MASTERDOWN CLUSTERDOWN MISCONF NOREPLICAS "

// away is whether nothing decided: no connection, no reply in time, or no Redis that can. Any other
// error reply is a mistake in the configuration, which must not pass for an outage.
func away(err error) bool {
	var reply redis.Error
	code, _, _ := strings.Cut(fmt.Sprint(err), " ")
	return !errors.As(err, &reply) || strings.Contains(unable, " "+code+" ")
}

// hit returns whether one more is admitted.
func hit(key string) (bool, error) {
	client := pool.Get()
	defer client.Close()
	reply, err := redis.Ints(client.Do("RL.HIT", key, 5, 60))
	if err != nil && !away(err) {
		return false, err
	}
	if err != nil {
		// Fail open: a limiter that is away must not take the service with it. For logins and the
		// like, where an uncounted try is worse than none: return false.
		fmt.Fprintln(os.Stderr, "RL.HIT:", err)
		fmt.Println("admitted, not counted")
		return true, nil
	}
	limited, remaining, retryAfter := reply[0] == 1, reply[2], reply[3]
	if limited {
		fmt.Printf("refused, again in %d s\n", retryAfter)
	} else {
		fmt.Printf("admitted, %d left\n", remaining)
	}
	return !limited, nil
}

func main() {
	key := "limit:example:go"
	if len(os.Args) > 1 {
		key = os.Args[1]
	}
	for turn := 0; turn < 6; turn++ {
		if _, err := hit(key); err != nil {
			fmt.Fprintln(os.Stderr, "RL.HIT:", err)
			os.Exit(1)
		}
	}
}
