/* At most 5 hits in any 60 seconds, with hiredis: cc hiredis.c -lhiredis && ./a.out [KEY] */
#include <stdio.h>
#include <stdlib.h>
#include <hiredis/hiredis.h>

static redisContext *client;

static redisContext *opened(void) {
    char host[256] = "127.0.0.1", user[256] = "default", password[256] = "";
    int port = 6380;
    const char *url = getenv("REDIS_URL");
    if (url && sscanf(url, "redis://%255[^:@]:%255[^@]@%255[^:]:%d", user, password, host, &port) < 4
        && sscanf(url, "redis://:%255[^@]@%255[^:]:%d", password, host, &port) < 3)
        sscanf(url, "redis://%255[^:]:%d", host, &port), password[0] = 0;
    struct timeval half = {0, 500000};
    redisContext *made = redisConnectWithTimeout(host, port, half);
    if (made == NULL || made->err) return made;
    redisSetTimeout(made, half);
    if (password[0]) { /* should it be wrong, the hit is told so */
        redisReply *reply = redisCommand(made, "AUTH %s %s", user, password);
        if (reply) freeReplyObject(reply);
    }
    return made;
}

static redisReply *ask(const char *key) {
    if (client == NULL) client = opened();
    if (client == NULL || client->err) return NULL;
    return redisCommand(client, "RL.HIT %s 5 60", key);
}

/* Whether one more is admitted. */
static int hit(const char *key) {
    redisReply *reply = ask(key);
    if (reply == NULL || reply->type != REDIS_REPLY_ARRAY) {
        /* Fail open: a limiter that is away must not take the service with it. For logins and the
           like, where an uncounted try is worse than none: return 0. */
        fprintf(stderr, "RL.HIT: %s\n", reply ? reply->str : client ? client->errstr : "no memory");
        printf("admitted, not counted\n");
        if (reply) freeReplyObject(reply);
        else if (client) redisFree(client), client = NULL;
        return 1;
    }
    int limited = (int)reply->element[0]->integer;
    if (limited) printf("refused, again in %lld s\n", reply->element[3]->integer);
    else printf("admitted, %lld left\n", reply->element[2]->integer);
    freeReplyObject(reply);
    return !limited;
}

int main(int argc, char **argv) {
    for (int turn = 0; turn < 6; turn++) hit(argc > 1 ? argv[1] : "example:c");
    if (client) redisFree(client);
    return 0;
}
