# At most 5 hits in any 60 seconds, with Perl's Redis.pm: perl redis_pm.pl [KEY]
use strict;
use warnings;
use Redis;

my $url = $ENV{REDIS_URL} // 'redis://127.0.0.1:6380';
my ($user, $password, $server) = $url =~ m{^redis://(?:([^:@]*):([^@]*)@)?([^/]+)};
my @login = $password ? (username => $user || 'default', password => $password) : ();
my $client;
# Error replies of a Redis that is away, or can't run hits now.
my $unable = 'UPSTREAMDOWN|LOADING|BUSY|OOM|READONLY|MASTERDOWN|CLUSTERDOWN|MISCONF|NOREPLICAS';

sub hit {
    my ($key) = @_;
    # The name of a command with a dot in it goes by __std_cmd.
    my $reply = eval {
        $client //= Redis->new(server => $server, @login, cnx_timeout => 0.5, read_timeout => 0.5);
        scalar $client->__std_cmd('RL.HIT', $key, 5, 60);
    };
    if (!defined $reply) {
        # "[command] error" is an error reply. Any other one is a mistake in the configuration,
        # which must not pass for an outage.
        die 'RL.HIT: ' . (split /\n/, $@)[0] . "\n" if $@ =~ /\[[\w.]+\] (?!($unable) )/;
        # Fail open: a limiter that is away must not take the service with it. For logins and the
        # like, where an uncounted try is worse than none: return 0.
        undef $client;
        print STDERR "RL.HIT: $@";
        print "admitted, not counted\n";
        return 1;
    }
    my ($limited, undef, $remaining, $retry_after) = @$reply;
    print $limited ? "refused, again in $retry_after s\n" : "admitted, $remaining left\n";
    return !$limited;
}

hit($ARGV[0] // 'limit:example:perl') for 1 .. 6;
