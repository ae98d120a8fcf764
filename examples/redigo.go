// At most 5 hits in any 60 seconds, with redigo: go run redigo.go [KEY]
package main

import (
	"fmt"
	"os"
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

// hit tells whether one more is admitted.
func hit(key string) bool {
	client := pool.Get()
	defer client.Close()
	reply, err := redis.Ints(client.Do("RL.HIT", key, 5, 60))
	if err != nil {
		// Fail open: a limiter that is away must not take the service with it. For logins and the
		// like, where an uncounted try is worse than none: return false.
		fmt.Fprintln(os.Stderr, "RL.HIT:", err)
		fmt.Println("admitted, not counted")
		return true
	}
	limited, remaining, retryAfter := reply[0] == 1, reply[2], reply[3]
	if limited {
		fmt.Printf("refused, again in %d s\n", retryAfter)
	} else {
		fmt.Printf("admitted, %d left\n", remaining)
	}
	return !limited
}

func main() {
	key := "example:go"
	if len(os.Args) > 1 {
		key = os.Args[1]
	}
	for turn := 0; turn < 6; turn++ {
		hit(key)
	}
}
