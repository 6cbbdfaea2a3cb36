#!/bin/sh
# Create the missing files of docker/secrets/, one for each secret of compose.yaml. Existing files are not changed.
#
#     sh docker/secrets.sh
#
# Only the owner can enter the folder. The files are readable by all users, because Compose mounts them with their modes,
# and containers run as different users.
set -eu

folder=${1:-$(dirname "$0")/secrets}
mkdir -p "$folder"
chmod 0700 "$folder"
cd "$folder"
umask 022

random() { # <bytes>, as hexadecimal digits, which need no escaping in URLs and JSON
    od -An -v -tx1 -N"$1" /dev/urandom | tr -d ' \n'
}
make() { # <file> <content>; atomic
    if [ ! -e "$1" ]; then
        printf '%s\n' "$2" >".$1.new"
        mv ".$1.new" "$1"
        echo "created $folder/$1"
    fi
}

make secret_key.txt "$(random 32)"
for name in postgres valkey grafana rabbitmq flower; do
    make "${name}_password.txt" "$(random 24)"
done
make database_url.txt "postgresql://sluice:$(cat postgres_password.txt)@postgres:5432/sluice"
make redis_url.txt "redis://:$(cat valkey_password.txt)@valkey:6379/0"
make rabbitmq_url.txt "amqp://sluice:$(cat rabbitmq_password.txt)@rabbitmq:5672//"
for name in s3 s3_download; do
    make "${name}_access_key_id.txt" "$(random 10)"
    make "${name}_secret_access_key.txt" "$(random 24)"
done
# Empty: optional secrets, and the TLS certificate with its chain and its key, until you add them.
for name in none.txt tls_certificate.pem tls_key.pem; do
    [ -e "$name" ] || : >"$name"
done
